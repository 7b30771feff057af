"""Improved Deep Leakage from Gradients (Zhao, Mopuri, Bilen 2020)."""

from __future__ import annotations

from typing import Any

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.fragility import SmoothOnly
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.lbfgs import LBFGS, LineSearch
from leakgauge.attacks.inversion.objectives import L2
from leakgauge.attacks.inversion.optimisers import Constant
from leakgauge.attacks.inversion.settings import Effort, Matching, Space
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakgauge.attacks.inversion.update_models import OneBatch
from leakgauge.attacks.spec import AttackSpec, Cost, one_gradient

#: Tolerances below the rounding error of single precision, so that only rounding ends L-BFGS.
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
    r"""Return iDLG, which reads the label from the last layer and matches the gradient in Euclidean distance.

    .. math:: \arg\min_x \; \lVert \nabla_\theta\, \ell(f(x;\theta), c) - g \rVert^2

    Here :math:`g` is the observed gradient, and :math:`c` is the label from the last layer. L-BFGS starts from N(0, 1).
    The attack is strong on small smooth networks and single samples. It is known to be fragile with ReLU, with trained
    weights and with batches. In these cases, the outcome contains a warning.

    Args:
        lr: The learning rate of L-BFGS.
        steps: The largest number of steps. One step is up to 20 iterations of L-BFGS.
        threshold: The loss below which the attack stops. ``None`` switches this rule off.
        relative: Whether the loss is in per cent of the gradient's squared norm. A network that already predicts well
            has a weak gradient. Even a wrong sample then has a small distance to this gradient. With a relative loss, a
            threshold has the same meaning for all gradients. For an untrained LeNet, the relative loss is some
            hundreds. With a relative loss, L-BFGS also continues below the losses at which PyTorch's tolerances would
            otherwise end the run. On CIFAR-10, some samples are reconstructed only at such low losses.
        line_search: The line search of L-BFGS.
        restarts: The number of independent starting points.
        retries: The number of further attempts if the attack did not converge.
        snapshot_every: The number of steps between two recorded iterates. By default, no iterates are recorded.
    """
    limit = MaxSteps(steps)
    return Inversion(
        matching=Matching(L2(relative=relative), OneBatch(), Constant(100.0) if relative else Constant()),
        labels=LastLayer(),
        space=Space(box=False),
        descent=Descent(
            LBFGS(lr=lr, line_search=line_search, **(FINE if relative else {})),
            stop=limit if threshold is None else AnyOf(Threshold(threshold), limit),
            snapshot_every=snapshot_every,
        ),
        effort=Effort(restarts, retries=retries),
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
