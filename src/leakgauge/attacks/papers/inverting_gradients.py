"""Inverting Gradients (Geiping, Bauermeister, Dröge, Moeller, NeurIPS 2020)."""

from __future__ import annotations

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.mixed_precision import in_precision
from leakgauge.attacks.inversion.objectives import Cosine
from leakgauge.attacks.inversion.optimisers import Adam, Drops
from leakgauge.attacks.inversion.priors import TotalVariation
from leakgauge.attacks.inversion.settings import Effort, Matching
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.attacks.spec import AttackSpec, Cost, simulated


def inverting_gradients(
    *,
    tv: float = 1e-4,
    lr: float = 0.1,
    steps: int = 4800,
    threshold: float | None = None,
    mixed: bool = False,
    restarts: int = 1,
    vectorise: bool = False,
) -> Inversion:
    r"""Return Inverting Gradients, which matches the direction of the update and not its size (equation 4).

    .. math:: \arg\min_{x \in [0,1]^n} \; 1 - \frac{\langle \nabla\ell(x), g\rangle}
              {\lVert\nabla\ell(x)\rVert\,\lVert g\rVert} + \alpha\,\mathrm{TV}(x)

    Here :math:`g` is the observed gradient, and :math:`\alpha` is the weight of total variation. Adam uses only the
    *sign* of the gradient. Its learning rate is divided by 10 after 3/8, 5/8 and 7/8 of the steps. If the client
    returns weights (section 6 of the paper), :math:`\nabla\ell(x)` stands for the update of the simulated local
    training. The simulation uses the same samples in the same order in every epoch. The attack uses the labels that it
    is given. If no labels are given, it infers the labels from the last layer.

    Args:
        tv: The weight of the total-variation prior.
        lr: The learning rate of Adam.
        steps: The number of steps.
        threshold: The loss below which the attack stops. ``None`` switches this rule off.
        mixed: Whether convolutions and matrix products are computed in bfloat16
            (:class:`~leakgauge.attacks.inversion.mixed_precision.MixedPrecision`).
        restarts: The number of independent starting points.
        vectorise: Whether all restarts run in one vectorised computation.
    """
    limit = MaxSteps(steps)
    return Inversion(
        matching=Matching(Cosine(), in_precision(FullSimulation(), mixed)),
        labels=LastLayer(),
        priors=(TotalVariation(tv),),
        descent=Descent(
            Adam(lr=lr, signed=True), Drops(), limit if threshold is None else AnyOf(Threshold(threshold), limit)
        ),
        effort=Effort(restarts, vectorise),
    )


SPECS = (
    AttackSpec(
        name="inverting_gradients",
        factory=inverting_gradients,
        summary="Inverting Gradients (Geiping et al. 2020): the direction of the update is matched.",
        fits=simulated("the direction of the update, for gradients and local training"),
        cost=Cost.MINUTES,
        rank=4,
        takes_direction=True,
    ),
)
