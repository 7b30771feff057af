"""Improved Deep Leakage from Gradients (Zhao, Mopuri, Bilen 2020)."""

from __future__ import annotations

from typing import Any

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.fragility import SmoothOnly
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.lbfgs import LBFGS, LineSearch
from leakgauge.attacks.inversion.objectives import L2
from leakgauge.attacks.inversion.optimisers import Constant
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakgauge.attacks.inversion.update_models import OneBatch
from leakgauge.attacks.spec import AttackSpec, Cost, one_gradient

#: Tolerances so fine that the rounding of single precision, not they, ends L-BFGS.
FINE: dict[str, Any] = {"tolerance_gradient": 1e-10, "tolerance_change": 1e-14, "tolerance_curvature": 1e-16}


def idlg(
    *,
    lr: float = 1.0,
    steps: int = 300,
    threshold: float | None = 1e-6,
    relative: bool = False,
    line_search: LineSearch = "none",
    restarts: int = 1,
    retries: int = 0,
    snapshot_every: int | None = None,
) -> Inversion:
    r"""Read the label from the last layer's gradient, then match the gradient in Euclidean distance:

    .. math:: \arg\min_x \; \lVert \nabla_\theta\, \ell(f(x;\theta), c) - g \rVert^2,

    by L-BFGS from N(0, 1), stopped when the loss falls below ``threshold`` (``None``: never). Strong on small smooth
    networks and single samples; known to be fragile with ReLU, trained weights and batches, and then the outcome says
    so. One step is up to 20 L-BFGS iterations. ``retries`` starts what did not converge again.

    What a network already predicts leaves a weak gradient, of which a wrong sample soon has a small distance:
    ``relative`` measures the loss in per cent of the gradient's own squared norm (some hundreds for an untrained
    LeNet), so that a threshold means the same for all, and lets L-BFGS go on below the losses at which PyTorch's
    tolerances would end it (on CIFAR-10 some samples are found only there).
    """
    limit = MaxSteps(steps)
    return Inversion(
        objective=L2(relative=relative),
        update_model=OneBatch(),
        labels=LastLayer(),
        optimiser=LBFGS(lr=lr, line_search=line_search, **(FINE if relative else {})),
        stop=limit if threshold is None else AnyOf(Threshold(threshold), limit),
        match_weight=Constant(100.0) if relative else Constant(),
        box=False,
        restarts=restarts,
        retries=retries,
        snapshot_every=snapshot_every,
        caution=SmoothOnly(),
    )


SPECS = (
    AttackSpec(
        name="idlg",
        factory=idlg,
        summary="iDLG (Zhao, Mopuri, Bilen 2020): the label is read off, then the gradient is matched by L-BFGS.",
        fits=one_gradient,
        cost=Cost.SECONDS,
        rank=2,
    ),
)
