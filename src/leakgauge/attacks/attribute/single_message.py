"""The attack that an audit runs on a hidden column of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.attacks.attribute.base import for_tables
from leakgauge.attacks.attribute.equations import by_equations
from leakgauge.attacks.attribute.gradient import by_gradient
from leakgauge.attacks.attribute.records import Attributes, PublicRecords
from leakgauge.attacks.local_model.base import LocalModel
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import why_no_gradient
from leakgauge.core.progress import Report, silent


@dataclass(frozen=True)
class AttributeInference:
    """The attack that uses :func:`by_equations` or :func:`by_gradient`, depending on the message.

    If the message is the exact gradient of one step, the attack solves the equations. Otherwise the attack searches for
    the values whose gradients point in the direction of the client's update.

    Args:
        prior: The shares of the values in the population, if the attacker knows these shares.
    """

    prior: Sequence[float] | None = None

    def __call__(
        self,
        rounds: Sequence[Observation],
        records: PublicRecords,
        *,
        model: LocalModel | None = None,
        report: Report = silent,
    ) -> Attributes:
        """Infer the attribute with the attack that fits the client's messages."""
        attack = by_equations if all(_is_exact(observation) for observation in rounds) else by_gradient
        return attack(rounds, records, prior=self.prior, report=report)


def _is_exact(observation: Observation) -> bool:
    """Return whether the exact gradient of a single local step can be computed from the message."""
    return why_no_gradient(observation) is None


def _method_in_words(observation: Observation) -> Fit:
    if _is_exact(observation):
        return Fit(True, "solves the equations of one exact gradient")
    return Fit(
        True, "compares gradients with the direction of the update, because the update is not one exact gradient"
    )


SPECS = (
    AttackSpec(
        name="attribute_inference",
        factory=AttributeInference,
        summary="A hidden column, from the equations of one gradient or the direction of an update (LMRA, equation 2).",
        recovers="attribute",
        reads="update",
        fits=for_tables(_method_in_words),
        cost=Cost.INSTANT,
        rank=0,
        audit={},
    ),
)
