"""Improved Deep Leakage from Gradients (Zhao, Mopuri, Bilen 2020)."""

from __future__ import annotations

from leakscope.attacks.inversion import Inversion
from leakscope.inversion.labels import LastLayer
from leakscope.inversion.lbfgs import LBFGS
from leakscope.inversion.objectives import L2
from leakscope.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakscope.inversion.update_models import SingleStep


def idlg(*, lr: float = 1.0, steps: int = 300, threshold: float = 1e-6, restarts: int = 1) -> Inversion:
    r"""Read the label from the last layer's gradient, then match the gradient in Euclidean distance:

    .. math:: \arg\min_x \; \lVert \nabla_\theta\, \ell(f(x;\theta), c) - g \rVert^2,

    by L-BFGS from N(0, 1), stopped when the loss falls below ``threshold``. Strong on small smooth networks
    and single samples; known to be fragile with ReLU, trained weights and batches. One step is up to 20
    L-BFGS iterations.
    """
    return Inversion(
        objective=L2(),
        update_model=SingleStep(),
        labels=LastLayer(),
        optimiser=LBFGS(lr=lr),
        stop=AnyOf(Threshold(threshold), MaxSteps(steps)),
        box=False,
        restarts=restarts,
    )
