"""The value of one metric, with its confidence interval and its chance level."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

#: The direction in which a figure is worse for the client. A higher PSNR is worse, and a lower label error is worse.
Direction = Literal["higher", "lower"]


@dataclass(frozen=True, eq=False)
class Measure:
    """The value of one metric over samples, records or clients, with its 95% interval and its chance level.

    Args:
        name: The name of the metric, as in :data:`leakgauge.evaluation.METRICS`.
        value: The value, such as the mean PSNR over all samples or the share of recovered samples.
        low: The lower end of the 95% interval, or ``None`` if there is no interval, as for a single sample.
        high: The upper end of the 95% interval, or ``None`` if there is no interval, as for a single sample.
        chance: The value that an attacker reaches by guessing, without the client's message. ``None`` if no guess is
            defined.
        n: The number of samples, records or clients from which ``value`` was computed.
        of: A word for what ``n`` counts, such as samples, labels, records or clients.
        direction: ``"higher"`` if higher values are worse for the client, or ``"lower"`` if lower values are worse.
        worst: The value that is worst for the client, among the values of single samples, records or clients.
        unit: The unit, such as dB.
        chance_source: A description of the guess that reaches the chance level.
        data_range: The range of pixel values that the metric assumes.
        luck: The value that a guess without the message reaches with luck, in about one of twenty cases, or ``None`` if
            this is not known. The result of a single client is evidence of leakage only if it is better for the
            attacker than this value.
        luck_of_one: The value of the best single sample among many guesses without the message, or ``None`` if this is
            not known.
        per_sample: One value for each original sample, or ``None`` if the metric is computed over all samples together.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    n: int = 1
    of: str = "samples"
    direction: Direction = "higher"
    worst: float | None = None
    unit: str = ""
    chance_source: str = ""
    data_range: float | None = None
    luck: float | None = None
    luck_of_one: float | None = None
    per_sample: Tensor | None = field(default=None, repr=False)

    @property
    def above_chance(self) -> bool:
        """Whether the attacker does better than chance, over the whole 95% interval if there is one."""
        if self.chance is None:
            return False
        tolerance = 1e-6 * max(1.0, abs(self.chance))
        if self.direction == "higher":
            return (self.value if self.low is None else self.low) > self.chance + tolerance
        return (self.value if self.high is None else self.high) < self.chance - tolerance

    @property
    def excess(self) -> float | None:
        """The amount by which the attacker does better than chance, or ``None`` if there is no chance level."""
        if self.chance is None:
            return None
        return self.value - self.chance if self.direction == "higher" else self.chance - self.value

    @property
    def beyond_luck(self) -> bool:
        """Whether the attacker does better than a lucky guess. The result is true if the value of luck is not known."""
        if self.luck is None:
            return True
        tolerance = 1e-6 * max(1.0, abs(self.luck))
        return self.value > self.luck + tolerance if self.direction == "higher" else self.value < self.luck - tolerance

    def interval(self, digits: int = 4) -> str:
        """Return the 95% interval as text, such as ``0.1 to 0.3``, or a dash if there is no interval."""
        return "-" if self.low is None or self.high is None else f"{self.low:.{digits}g} to {self.high:.{digits}g}"

    def to_row(self) -> dict[str, Any]:
        """Return the measure as a dictionary of plain values, for JSON or CSV files. ``per_sample`` is left out."""
        row = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "per_sample"}
        return {"metric": row.pop("name"), **row, "above_chance": self.above_chance}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Measure:
        """Return the measure from which :meth:`to_row` made the given dictionary. A missing value is read as NaN."""
        known = {one.name for one in fields(cls)} - {"name", "value"}
        value = math.nan if row["value"] is None else row["value"]
        return cls(row["metric"], value, **{key: row[key] for key in row.keys() & known})
