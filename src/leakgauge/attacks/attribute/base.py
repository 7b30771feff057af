"""The interface of the registered attacks on a hidden attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from leakgauge.attacks.attribute.records import Attributes, PublicRecords
from leakgauge.attacks.local_model.base import LocalModel
from leakgauge.attacks.spec import Fit, Fits
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, silent


class AttributeAttack(Protocol):
    """The interface of a registered attack that infers a hidden attribute of records."""

    def __call__(
        self,
        rounds: Sequence[Observation],
        records: PublicRecords,
        *,
        model: LocalModel | None = None,
        report: Report = silent,
    ) -> Attributes:
        """Infer the hidden attribute of a client's records.

        Args:
            rounds: The client's observations, one per round.
            records: The client's records, without the sensitive attribute.
            model: The client's rebuilt model, if the attack uses one.
            report: A function ``report(step, total, loss)`` that shows progress.
        """


def for_tables(fits: Fits) -> Fits:
    """Return a function that decides whether an attack applies. The function refuses data without named columns.

    Args:
        fits: The function that decides for data with named columns.
    """

    def rule(observation: Observation) -> Fit:
        if not observation.data.columns:
            return Fit(False, "needs a table with named columns, and this data has none")
        return fits(observation)

    return rule
