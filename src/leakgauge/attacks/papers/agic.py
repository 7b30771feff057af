"""Approximate Gradient Inversion (AGIC; Xu, Hong, Huang, Chen, Decouchant 2022)."""

from __future__ import annotations

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.joint import Filter, JointInversion
from leakgauge.attacks.inversion.labels import MostNegative
from leakgauge.attacks.inversion.layer_weights import Norms, Shape, Sloped
from leakgauge.attacks.inversion.mixed_precision import in_precision
from leakgauge.attacks.inversion.objectives import L2, Cosine, LayerWeighted
from leakgauge.attacks.inversion.optimisers import Adam, Constant, Drops
from leakgauge.attacks.inversion.priors import TotalVariation
from leakgauge.attacks.inversion.settings import Effort, Matching, Space
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.update_models import FullSimulation, OneBatch
from leakgauge.attacks.spec import AttackSpec, Cost, always


def agic(  # noqa: PLR0913
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
    r"""Return AGIC, which treats all local steps as one step and gives each layer a weight (equations 4, 6 and 8).

    .. math:: \arg\min_x \; 1 - \frac{\sum_i \alpha_i \langle \nabla L'_i, \nabla L_i\rangle}
              {\sqrt{\sum_i \alpha_i \lVert\nabla L'_i\rVert^2}\,\sqrt{\sum_i \alpha_i \lVert\nabla L_i\rVert^2}}
              + \zeta_{TV}\,\mathrm{TV}(x)

    Here :math:`\alpha_i` is the weight of layer :math:`i`, :math:`\nabla L'_i` its predicted update, :math:`\nabla L_i`
    its observed update and :math:`\zeta_{TV}` the weight of total variation.

    The single step uses the combined batch of all local steps. A step of the attack therefore costs the same for any
    number of local steps. The attack uses the labels that it is given. If no labels are given, it infers the labels
    from the last layer (Yin et al. 2021). For the updates of several epochs see :func:`~leakgauge.attacks.agic_epochs`.

    Args:
        beta: The weight of the last convolution. The paper uses 50 for untrained networks (with ``tv`` 1e-4) and 2 for
            trained networks (with ``tv`` 1e-2).
        shape: The shape of the weights over the convolutions, as in
            :class:`~leakgauge.attacks.inversion.layer_weights.Sloped`.
        zeros: Whether weights are corrected for the zeros that ReLU leaves in a layer's update.
        norms: The weight of normalisation layers, as in :class:`~leakgauge.attacks.inversion.layer_weights.Sloped`.
        tv: The weight of the total-variation prior.
        lr: The learning rate of Adam.
        steps: The number of steps.
        signed: Whether Adam uses only the sign of the gradient, as in Inverting Gradients. The authors build on the
            code of that attack.
        drops: Whether the learning rate drops after 3/8, 5/8 and 7/8 of the steps, also as in Inverting Gradients.
        distinct: Whether the attack assumes that all labels of a batch differ.
        mixed: Whether convolutions and matrix products are computed in bfloat16
            (:class:`~leakgauge.attacks.inversion.mixed_precision.MixedPrecision`).
        restarts: The number of independent starting points.
        snapshot_every: The number of steps between two recorded iterates. By default, no iterates are recorded.
    """
    return Inversion(
        matching=Matching(
            LayerWeighted(Cosine(), Sloped(beta, shape, zeros, norms)),
            in_precision(OneBatch(), mixed),
        ),
        labels=MostNegative(distinct=distinct),
        priors=(TotalVariation(tv),),
        descent=Descent(
            Adam(lr=lr, signed=signed),
            Drops() if drops else Constant(),
            MaxSteps(steps),
            snapshot_every=snapshot_every,
        ),
        effort=Effort(restarts),
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
    """Return Inverting Gradients for FedAvg, with the settings of AGIC's baseline (section V-A).

    The local steps are simulated, and all layers have the same weight. The attack is
    :func:`~leakgauge.attacks.papers.inverting_gradients` with AGIC's number of steps and AGIC's inference of labels.

    Args:
        tv: The weight of the total-variation prior.
        lr: The learning rate of Adam, which uses only the sign of the gradient.
        steps: The number of steps.
        distinct: Whether the attack assumes that all labels of a batch differ.
        mixed: Whether convolutions and matrix products are computed in bfloat16.
        restarts: The number of independent starting points.
    """
    return Inversion(
        matching=Matching(Cosine(), in_precision(FullSimulation(), mixed)),
        labels=MostNegative(distinct=distinct),
        priors=(TotalVariation(tv),),
        descent=Descent(Adam(lr=lr, signed=True), Drops(), MaxSteps(steps)),
        effort=Effort(restarts),
    )


def dlg_simulation(
    *, lr: float = 0.1, steps: int = 10_000, distinct: bool = False, mixed: bool = False, restarts: int = 1
) -> Inversion:
    """Return DLG-Adam, a baseline of AGIC that minimises the Euclidean distance by Adam (section V-A).

    Labels are inferred from the last layer before the optimisation. For FedAvg, the local steps are simulated. The AWA
    paper calls this attack DLG (section 5.2, 1,000 steps). The published DLG, which is
    :func:`~leakgauge.attacks.papers.dlg`, optimises the labels together with the samples.

    Args:
        lr: The learning rate of Adam.
        steps: The number of steps.
        distinct: Whether the attack assumes that all labels of a batch differ.
        mixed: Whether convolutions and matrix products are computed in bfloat16.
        restarts: The number of independent starting points.
    """
    return Inversion(
        matching=Matching(L2(), in_precision(FullSimulation(), mixed)),
        labels=MostNegative(distinct=distinct),
        space=Space(box=False),
        descent=Descent(Adam(lr=lr), stop=MaxSteps(steps)),
        effort=Effort(restarts),
    )


def agic_epochs(  # noqa: PLR0913
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
    """Return the attack of AGIC on the updates of two or more epochs (section IV-B).

    First, each update is reconstructed separately. Then the attack identifies samples that occur in several epochs.
    Finally, all updates of a sample are matched together (equation 5). Some updates may be gradients and others
    returned weights. Call the attack with one list of observations for each epoch, as in ``agic_epochs()([[...],
    [...]])``.

    Args:
        beta: The weight of the last convolution. With ``beta=1`` and ``zeros=False`` all layers have the same weight,
            as in the paper's experiment (table VI).
        zeros: Whether weights are corrected for the zeros that ReLU leaves in a layer's update.
        tv: The weight of the total-variation prior.
        lr: The learning rate of Adam.
        first_steps: The number of steps in which each update is reconstructed separately.
        steps: The number of steps in which the updates are matched together.
        gamma: The weight of the updates after the first epoch.
        pool: The side length, in pixels, of the squares over which samples are averaged before they are paired.
        label_filter: The rule for allowed pairs of samples, as in
            :class:`~leakgauge.attacks.inversion.joint.JointInversion`.
        distinct: Whether the attack assumes that all labels of a batch differ.
        mixed: Whether convolutions and matrix products are computed in bfloat16.
    """
    attack = agic(beta=beta, zeros=zeros, tv=tv, lr=lr, steps=steps, distinct=distinct, mixed=mixed)
    return JointInversion(
        first=attack.with_settings(stop=MaxSteps(first_steps)),
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
