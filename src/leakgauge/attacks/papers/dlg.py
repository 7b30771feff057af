"""Deep Leakage from Gradients (Zhu, Liu, Han, NeurIPS 2019), by L-BFGS or by Adam (DLG-Adam)."""

from __future__ import annotations

from typing import Literal

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.fragility import SmoothOnly
from leakgauge.attacks.inversion.lbfgs import LBFGS
from leakgauge.attacks.inversion.objectives import L2
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.settings import Effort, Matching, Space
from leakgauge.attacks.inversion.soft_labels import SoftLabels
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakgauge.attacks.inversion.update_models import OneBatch
from leakgauge.attacks.spec import AttackSpec, Cost, one_gradient
from leakgauge.core.errors import UnknownName


def dlg(
    *,
    optimiser: Literal["lbfgs", "adam"] = "lbfgs",
    lr: float | None = None,
    steps: int | None = None,
    threshold: float | None = 1e-6,
    restarts: int = 1,
    retries: int = 0,
    snapshot_every: int | None = None,
) -> Inversion:
    r"""Return DLG, which optimises the samples and their labels together (algorithm 1).

    .. math:: \arg\min_{x,\,z} \; \lVert \nabla_\theta\, \ell(f(x;\theta), \mathrm{softmax}(z)) - g \rVert^2

    Here :math:`g` is the observed gradient, and :math:`z` are the logits of the labels. Samples and logits start from
    N(0, 1). The attack is fragile in the same cases as :func:`~leakgauge.attacks.papers.idlg`, and also if the labels
    converge to wrong values.

    Args:
        optimiser: The optimiser. ``"lbfgs"`` is the published one. ``"adam"`` gives DLG-Adam, the baseline of AGIC (Xu
            et al. 2022, section IV), for networks on which L-BFGS does not converge.
        lr: The learning rate. By default, 1 for L-BFGS and 0.1 for Adam.
        steps: The number of steps. By default, 300 for L-BFGS and 4,000 for Adam. A step of L-BFGS has up to 20
            iterations, and a step of Adam has one evaluation.
        threshold: The loss below which the attack stops. ``None`` switches this rule off.
        restarts: The number of independent starting points.
        retries: The number of further attempts if the attack did not converge.
        snapshot_every: The number of steps between two recorded iterates. By default, no iterates are recorded.
    """
    if optimiser not in ("lbfgs", "adam"):
        raise UnknownName("optimiser of dlg()", optimiser, ("lbfgs", "adam"))
    by_adam = optimiser == "adam"
    limit = MaxSteps((4000 if by_adam else 300) if steps is None else steps)
    rate = (0.1 if by_adam else 1.0) if lr is None else lr
    return Inversion(
        matching=Matching(L2(), OneBatch()),
        labels=SoftLabels(),
        space=Space(box=False),
        descent=Descent(
            Adam(lr=rate) if by_adam else LBFGS(lr=rate),
            stop=limit if threshold is None else AnyOf(Threshold(threshold), limit),
            snapshot_every=snapshot_every,
        ),
        effort=Effort(restarts, retries=retries),
        caution=SmoothOnly(),
    )


SPECS = (
    AttackSpec(
        name="dlg",
        factory=dlg,
        summary="DLG (Zhu, Liu, Han 2019): samples and labels together, by L-BFGS or Adam.",
        fits=one_gradient,
        cost=Cost.SECONDS,
        rank=4,
    ),
)
