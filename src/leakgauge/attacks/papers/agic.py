"""Approximate Gradient Inversion (AGIC; Xu, Hong, Huang, Chen, Decouchant 2022)."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.joint import Filter, JointInversion
from leakgauge.attacks.inversion.labels import MostNegative
from leakgauge.attacks.inversion.layer_weights import Norms, Shape, Sloped
from leakgauge.attacks.inversion.objectives import L2, Cosine, LayerWeighted
from leakgauge.attacks.inversion.optimisers import Adam, Constant, Drops
from leakgauge.attacks.inversion.priors import TotalVariation
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.update_models import FullSimulation, OneBatch, in_precision
from leakgauge.attacks.spec import AttackSpec, Cost, always


def agic(
    *,
    beta: float = 50.0,
    shape: Shape = "linear",
    zeros: bool = True,
    norms: Norms = "one",
    tv: float = 1e-4,
    lr: float = 0.1,
    steps: int = 10_000,
    signed: bool = True,
    drops: bool = True,
    distinct: bool = False,
    mixed: bool = False,
    restarts: int = 1,
    snapshot_every: int | None = None,
) -> Inversion:
    r"""All local steps as one on the combined batch (equation 4), layers weighted by where they are (equations 6, 8):

    .. math:: \arg\min_x \; 1 - \frac{\sum_i \alpha_i \langle \nabla L'_i, \nabla L_i\rangle}
              {\sqrt{\sum_i \alpha_i \lVert\nabla L'_i\rVert^2}\,\sqrt{\sum_i \alpha_i \lVert\nabla L_i\rVert^2}}
              + \zeta_{TV}\,\mathrm{TV}(x).

    The step costs the same however many steps the client took. ``beta`` is the weight of the last convolution (the
    paper: 50 for untrained networks, 2 for trained ones, with ``tv`` 1e-4 and 1e-2); ``shape``, ``zeros`` and
    ``norms`` are those of :class:`~leakgauge.attacks.inversion.layer_weights.Sloped`. Labels are the granted ones, or read
    from the last layer (Yin et al. 2021), where ``distinct`` takes those of a batch to differ. As in Inverting
    Gradients, whose code the authors build on, Adam is given the ``signed`` gradient and its learning rate ``drops``
    after 3/8, 5/8 and 7/8 of the steps. ``mixed`` takes products in bfloat16
    (:class:`~leakgauge.attacks.inversion.update_models.MixedPrecision`).

    Updates of several epochs: :func:`~leakgauge.attacks.agic_epochs`.
    """
    return Inversion(
        objective=LayerWeighted(Cosine(), Sloped(beta, shape, zeros, norms)),
        update_model=in_precision(OneBatch(), mixed),
        labels=MostNegative(distinct=distinct),
        priors=(TotalVariation(tv),),
        optimiser=Adam(lr=lr, signed=signed),
        schedule=Drops() if drops else Constant(),
        stop=MaxSteps(steps),
        restarts=restarts,
        snapshot_every=snapshot_every,
    )


def invg_simulation(
    *,
    tv: float = 1e-4,
    lr: float = 0.1,
    steps: int = 10_000,
    distinct: bool = False,
    mixed: bool = False,
    restarts: int = 1,
) -> Inversion:
    """Inverting Gradients on FedAvg, AGIC's baseline: the local steps simulated, all layers alike (section V-A).

    :func:`~leakgauge.attacks.papers.inverting_gradients` with AGIC's number of steps and its way of reading labels.
    """
    return Inversion(
        objective=Cosine(),
        update_model=in_precision(FullSimulation(), mixed),
        labels=MostNegative(distinct=distinct),
        priors=(TotalVariation(tv),),
        optimiser=Adam(lr=lr, signed=True),
        schedule=Drops(),
        stop=MaxSteps(steps),
        restarts=restarts,
    )


def dlg_simulation(
    *, lr: float = 0.1, steps: int = 10_000, distinct: bool = False, mixed: bool = False, restarts: int = 1
) -> Inversion:
    """DLG-Adam, AGIC's other baseline: the Euclidean distance, by Adam, with labels read before (section V-A).

    For FedAvg the local steps are simulated. Also what AWA calls DLG (its section 5.2, 1,000 steps). DLG as published,
    which finds the labels with the samples, is :func:`~leakgauge.attacks.papers.dlg`.
    """
    return Inversion(
        objective=L2(),
        update_model=in_precision(FullSimulation(), mixed),
        labels=MostNegative(distinct=distinct),
        optimiser=Adam(lr=lr),
        stop=MaxSteps(steps),
        box=False,
        restarts=restarts,
    )


def agic_epochs(
    *,
    beta: float = 50.0,
    zeros: bool = True,
    tv: float = 1e-4,
    lr: float = 0.1,
    first_steps: int = 2000,
    steps: int = 10_000,
    gamma: float = 0.1,
    pool: int = 2,
    label_filter: Filter = "batch",
    distinct: bool = False,
    mixed: bool = False,
) -> JointInversion:
    """Reconstruct a client's samples from the updates of two or more epochs (section IV-B).

    Each update is reconstructed by itself in ``first_steps``, samples that recur are found, then all updates of a
    sample are matched together (equation 5), those of later epochs with the weight ``gamma``; ``beta=1, zeros=False``
    weights all layers alike, as the paper does there (table VI). Gradients and returned weights may be mixed. Call it
    with the observations epoch by epoch: ``agic_epochs()([[...], [...]])``.
    """
    attack = agic(beta=beta, zeros=zeros, tv=tv, lr=lr, steps=steps, distinct=distinct, mixed=mixed)
    return JointInversion(
        first=replace(attack, stop=MaxSteps(first_steps)),
        joint=attack,
        gammas=(1.0, gamma),
        pool=pool,
        label_filter=label_filter,
    )


SPECS = (
    AttackSpec(
        name="agic",
        factory=agic,
        summary="AGIC (Xu et al. 2022): all local steps as one batch, layers weighted by position.",
        fits=always("all local steps as one"),
        cost=Cost.MINUTES,
        rank=1,
    ),
    AttackSpec(
        name="dlg_simulation",
        factory=dlg_simulation,
        summary="DLG-Adam, a baseline of AGIC (Xu et al. 2022): simulated local steps, Euclidean distance.",
        fits=always("a baseline: Euclidean distance"),
        cost=Cost.MINUTES,
        rank=3,
    ),
    AttackSpec(
        name="invg_simulation",
        factory=invg_simulation,
        summary="Inverting Gradients as the baseline of AGIC (Xu et al. 2022): simulated local steps, cosine distance.",
        fits=always("a baseline: simulation, all layers alike"),
        cost=Cost.MINUTES,
        rank=5,
    ),
    AttackSpec(
        name="agic_epochs",
        factory=agic_epochs,
        summary="AGIC on several epochs (Xu et al. 2022): samples that recur are matched with all their updates.",
        reads="epochs",
        fits=always("samples that recur in several epochs"),
        cost=Cost.MINUTES,
    ),
)
