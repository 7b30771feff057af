"""The attack that infers a hidden attribute from directions of updates (LMRA, equation 2; Lyu and Chen 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from leakgauge.attacks.attribute.base import for_tables
from leakgauge.attacks.attribute.problem import GradientProblem
from leakgauge.attacks.attribute.records import Attributes, PublicRecords
from leakgauge.attacks.local_model.base import LocalModel
from leakgauge.attacks.local_model.messages import Messages
from leakgauge.attacks.spec import AttackSpec, Cost, always
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, silent


def by_gradient(
    observations: Sequence[Observation],
    records: PublicRecords,
    *,
    rounds: int = 5,
    steps: int = 40,
    lr: float = 0.1,
    prior: Sequence[float] | None = None,
    report: Report = silent,
) -> Attributes:
    """Infer the values whose gradients point in the direction of the client's updates (LMRA, equation 2).

    During the search, each record has a share of every possible value. Adam starts from the prior if a prior is given,
    and otherwise from equal shares. The inferred value of a record is the value with the largest share.

    Args:
        observations: The observations of one client, one per round.
        records: The client's records, without the sensitive attribute.
        rounds: The number of evenly spaced rounds to use.
        steps: The number of Adam steps.
        lr: The learning rate of Adam.
        prior: The shares of the values in the population, if the attacker knows these shares.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    messages = Messages.read(observations)
    problem = GradientProblem(messages, records, _spaced(len(messages), rounds))
    free = records.shares(prior).log().to(messages.sent).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=lr)
    cosine = torch.zeros(())
    for step in range(steps):
        total = torch.zeros_like(free)
        cosine = torch.zeros(())
        for place in range(len(problem.points)):
            inputs = problem.inputs(free.softmax(1))
            similarity = F.cosine_similarity(problem.gradient(place, inputs), problem.observed[place], dim=0)
            total -= torch.autograd.grad(similarity, free)[0]
            cosine += float(similarity.detach()) / len(problem.points)
        free.grad = total
        optimiser.step()
        report(step + 1, steps, -float(cosine))
    scores = free.detach().softmax(1)
    outcome = f"the gradients agree to a cosine of {float(cosine):.3f}"
    return Attributes(scores.argmax(1), scores, records.values, None, outcome)


def _spaced(count: int, wanted: int) -> list[int]:
    """Return the indices of evenly spaced rounds, including the first and the last round."""
    if wanted < 1:
        raise InvalidInput(f"rounds must be at least 1, not {wanted}")
    return sorted({round(place) for place in torch.linspace(0, count - 1, min(wanted, count)).tolist()})


@dataclass(frozen=True)
class AttributeByGradient:
    """The attack :func:`by_gradient` as a class, so that the registry can build it by name.

    Args:
        rounds: The number of evenly spaced rounds to use.
        steps: The number of Adam steps.
        lr: The learning rate of Adam.
        prior: The shares of the values in the population, if the attacker knows these shares.
    """

    rounds: int = 5
    steps: int = 40
    lr: float = 0.1
    prior: Sequence[float] | None = None

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds)
        whole_number("steps", self.steps)
        positive("lr", self.lr)

    def __call__(
        self,
        rounds: Sequence[Observation],
        records: PublicRecords,
        *,
        model: LocalModel | None = None,
        report: Report = silent,
    ) -> Attributes:
        """Infer the attribute from the directions of the client's updates."""
        return by_gradient(
            rounds, records, rounds=self.rounds, steps=self.steps, lr=self.lr, prior=self.prior, report=report
        )


SPECS = (
    AttackSpec(
        name="attribute_by_gradient",
        factory=AttributeByGradient,
        summary="The values whose gradients point in the direction of the client's updates (LMRA, equation 2).",
        recovers="attribute",
        reads="rounds",
        fits=for_tables(always("compares directions, so the recipe may be unknown")),
        cost=Cost.SECONDS,
        rank=1,
    ),
)
