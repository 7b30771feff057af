"""Inverting Gradients (Geiping, Bauermeister, Dröge, Moeller, NeurIPS 2020)."""

from __future__ import annotations

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.objectives import Cosine
from leakgauge.attacks.inversion.optimisers import Adam, Drops
from leakgauge.attacks.inversion.priors import TotalVariation
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakgauge.attacks.inversion.update_models import FullSimulation, in_precision
from leakgauge.attacks.spec import AttackSpec, Cost, always


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
    r"""Match the direction of the update, not its size (equation 4):

    .. math:: \arg\min_{x \in [0,1]^n} \; 1 - \frac{\langle \nabla\ell(x), g\rangle}
              {\lVert\nabla\ell(x)\rVert\,\lVert g\rVert} + \alpha\,\mathrm{TV}(x),

    by Adam on the *sign* of the gradient, its learning rate divided by 10 after 3/8, 5/8 and 7/8 of the steps.
    For returned weights (section 6 there) :math:`\nabla\ell(x)` is the client's simulated local training with
    the same samples and order in every epoch. Labels are the granted ones, or read from the last layer.
    ``threshold`` ends the attack early when the loss falls below it; ``mixed`` takes products in bfloat16
    (:class:`~leakgauge.attacks.inversion.update_models.MixedPrecision`).
    """
    limit = MaxSteps(steps)
    return Inversion(
        objective=Cosine(),
        update_model=in_precision(FullSimulation(), mixed),
        labels=LastLayer(),
        priors=(TotalVariation(tv),),
        optimiser=Adam(lr=lr, signed=True),
        schedule=Drops(),
        stop=limit if threshold is None else AnyOf(Threshold(threshold), limit),
        restarts=restarts,
        vectorise=vectorise,
    )


SPECS = (
    AttackSpec(
        name="inverting_gradients",
        factory=inverting_gradients,
        summary="Inverting Gradients (Geiping et al. 2020): the direction of the update is matched.",
        fits=always("the direction of the update, for gradients and local training"),
        cost=Cost.MINUTES,
        rank=4,
        audit={"steps": 1000},
    ),
)
