"""One figure with its interval, its chance level and how many values it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

#: The direction in which a figure is worse for the client: a higher PSNR, a lower label error.
Direction = Literal["higher", "lower"]


@dataclass(frozen=True, eq=False)
class Measure:
    """One metric over samples, records or clients, with its 95% interval, beside its chance level.

    Args:
        name: The metric, as :data:`leakgauge.evaluation.METRICS` lists it.
        value: The mean, or the share.
        low: The lower end of the 95% interval. ``None`` where a single value gives no interval.
        high: The upper end of the 95% interval.
        chance: The value that a guess without the message reaches. ``None`` where no guess is defined.
        n: The number of values that the figure is of.
        of: The kind of these values: samples, labels, records or clients.
        direction: The direction in which the client is worse off.
        worst: The single value that is worst for a client.
        unit: The unit, such as dB.
        chance_source: The guess that reaches the chance level, in words.
        data_range: The range of pixel values that the metric assumes.
        per_sample: One value for each original sample. ``None`` for a metric of all samples together.
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
    per_sample: Tensor | None = field(default=None, repr=False)

    @property
    def above_chance(self) -> bool:
        """Whether the interval lies on the attacker's side of chance. A single value stands for itself."""
        if self.chance is None:
            return False
        tolerance = 1e-6 * max(1.0, abs(self.chance))
        if self.direction == "higher":
            return (self.value if self.low is None else self.low) > self.chance + tolerance
        return (self.value if self.high is None else self.high) < self.chance - tolerance

    @property
    def excess(self) -> float | None:
        """The difference from chance. It is positive if the attacker does better than chance."""
        if self.chance is None:
            return None
        return self.value - self.chance if self.direction == "higher" else self.chance - self.value

    def interval(self, digits: int = 4) -> str:
        """Return the interval as text, or a dash where there is none."""
        return "-" if self.low is None or self.high is None else f"{self.low:.{digits}g} to {self.high:.{digits}g}"

    def to_row(self) -> dict[str, Any]:
        """Return the figure as a plain dictionary, without the values of single samples."""
        row = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "per_sample"}
        return {"metric": row.pop("name"), **row, "above_chance": self.above_chance}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Measure:
        """Return the figure that :meth:`to_row` made a dictionary of."""
        known = {one.name for one in fields(cls)}
        return cls(row["metric"], **{key: value for key, value in row.items() if key in known and key != "name"})
