"""Deep Leakage from Gradients (Zhu, Liu, Han, NeurIPS 2019), by L-BFGS or by Adam (DLG-Adam)."""

from __future__ import annotations

from typing import Literal

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.fragility import SmoothOnly
from leakgauge.attacks.inversion.lbfgs import LBFGS
from leakgauge.attacks.inversion.objectives import L2
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.soft_labels import SoftLabels
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
    r"""Find the samples and their labels together (algorithm 1): both start at N(0, 1), and

    .. math:: \arg\min_{x,\,z} \; \lVert \nabla_\theta\, \ell(f(x;\theta), \mathrm{softmax}(z)) - g \rVert^2

    is minimised by L-BFGS (``lr`` 1, 300 ``steps`` of up to 20 iterations). ``optimiser="adam"`` is DLG-Adam, the
    baseline of AGIC (Xu et al. 2022, section IV), for networks on which L-BFGS does not converge: ``lr`` 0.1 and 4,000
    ``steps`` of one evaluation unless told otherwise. ``threshold`` ends the attack early (``None``: never). Fragile
    where :func:`~leakgauge.attacks.papers.idlg` is, and where the labels go astray.
    """
    if optimiser not in ("lbfgs", "adam"):
        raise UnknownName("optimiser of dlg()", optimiser, ("lbfgs", "adam"))
    by_adam = optimiser == "adam"
    limit = MaxSteps((4000 if by_adam else 300) if steps is None else steps)
    rate = (0.1 if by_adam else 1.0) if lr is None else lr
    return Inversion(
        objective=L2(),
        update_model=OneBatch(),
        labels=SoftLabels(),
        optimiser=Adam(lr=rate) if by_adam else LBFGS(lr=rate),
        stop=limit if threshold is None else AnyOf(Threshold(threshold), limit),
        box=False,
        restarts=restarts,
        retries=retries,
        snapshot_every=snapshot_every,
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
