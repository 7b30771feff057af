"""Gradient matching with a prior, whose weight is chosen with entries of the message that are not matched."""

from __future__ import annotations

from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.objectives import Cosine
from leakgauge.attacks.inversion.optimisers import Adam, Ramp
from leakgauge.attacks.inversion.prior_path import PriorPath
from leakgauge.attacks.inversion.priors import TotalVariation
from leakgauge.attacks.inversion.settings import Effort, Matching, Space
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.attacks.spec import AttackSpec, Cost, simulated


def prior_path(
    *, tv: float = 0.1, statistics: float = 1.0, lr: float = 0.2, steps: int = 1000, restarts: int = 1
) -> PriorPath:
    """Return an inversion that chooses the weight of its prior with held-out entries of the message.

    As in Inverting Gradients (Geiping et al. 2020), the direction of the update is matched, and total variation is the
    prior. Five things differ. First, some entries of the message are held out, which means that they are not matched.
    The weight of the prior falls step by step, and the attack continues from the weight that predicts these entries
    best (:mod:`leakgauge.attacks.inversion.prior_path`). Second, if a noisy message explains nothing, the result is a
    constant guess and not a picture of the noise. Third, Adam uses the gradients themselves and not their signs, and
    averages them over about ten steps. Fourth, the batch statistics that batch norm in train mode reveals are matched
    too (:mod:`leakgauge.attacks.inversion.batch_statistics`). Fifth, the total variation of a colour picture is also
    that of the differences between its channels.

    A step costs as much as one of :func:`~leakgauge.attacks.papers.inverting_gradients.inverting_gradients`. The
    comparisons with the held-out entries cost 17 further predictions in all.

    Args:
        tv: The weight of total variation at the first step, from which the weight falls.
        statistics: The weight of the distance between batch statistics. It is used if the message reveals statistics.
        lr: The learning rate of Adam.
        steps: The number of steps.
        restarts: The number of independent starting points. All of them run while the weight of the prior falls. Then
            only the best one continues.
    """
    return PriorPath(
        matching=Matching(Cosine(), FullSimulation()),
        labels=LastLayer(),
        priors=(TotalVariation(tv, opponents=True),),
        space=Space(rescale=True),
        descent=Descent(Adam(lr=lr, betas=(0.9, 0.9)), Ramp(1.0, 0.01, 1.0), MaxSteps(steps), keep_last=True),
        effort=Effort(restarts),
        statistics=statistics,
    )


SPECS = (
    AttackSpec(
        name="prior_path",
        factory=prior_path,
        summary="Ours: the direction of the update is matched, and held-out entries choose the weight of the prior.",
        fits=simulated("the direction of the update, with a prior whose weight the message chooses"),
        cost=Cost.MINUTES,
        rank=4,
        audit={"steps": 1000},
        takes_direction=True,
    ),
)
