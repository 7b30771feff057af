"""What a score holds and how it prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from leakgauge.core.errors import UnknownName
from leakgauge.evaluation.metrics.catalogue import Better
from leakgauge.evaluation.pairing import Pairing


@dataclass(frozen=True, eq=False)
class Measure:
    """One metric over a client's samples, with its 95% interval, beside its chance level.

    ``low`` and ``high`` are ``None`` where a single sample gives no interval. ``per_sample`` has one value
    for each original, or is ``None`` for a metric of all samples together.
    """

    name: str
    mean: float
    low: float | None
    high: float | None
    chance: float
    chance_source: str
    better: Better
    count: int
    unit: str = ""
    data_range: float | None = None
    per_sample: Tensor | None = field(default=None, repr=False)

    @property
    def above_chance(self) -> bool:
        """Whether the interval lies on the attacker's side of chance; a single value stands for itself."""
        tolerance = 1e-6 * max(1.0, abs(self.chance))
        if self.better == "higher":
            return (self.mean if self.low is None else self.low) > self.chance + tolerance
        return (self.mean if self.high is None else self.high) < self.chance - tolerance

    def to_row(self) -> dict[str, object]:
        """The figures as a plain dict."""
        return {
            "metric": self.name,
            "value": self.mean,
            "low": self.low,
            "high": self.high,
            "chance": self.chance,
            "chance_source": self.chance_source,
            "above_chance": self.above_chance,
            "better": self.better,
            "count": self.count,
            "unit": self.unit,
            "data_range": self.data_range,
        }


@dataclass(frozen=True, eq=False)
class Score:
    """How much of one client's data came back: ``print(score)``, or ``score["psnr"].mean``."""

    metrics: dict[str, Measure]
    pairing: Pairing
    threshold: float | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Measure:
        if name not in self.metrics:
            raise UnknownName("metric in this score called", name, self.metrics)
        return self.metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self.metrics

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def above_chance(self, name: str) -> bool:
        """Whether this metric's interval lies on the better side of its chance level."""
        return self[name].above_chance

    def to_rows(self) -> list[dict[str, object]]:
        """One plain dict a metric."""
        return [measure.to_row() for measure in self.metrics.values()]

    def __str__(self) -> str:
        rows = [("metric", "value", "95% interval", "chance", "n")]
        for measure in self.metrics.values():
            name = f"{measure.name} ({measure.unit})" if measure.unit else measure.name
            interval = "-" if measure.low is None else f"{_number(measure.low)} to {_number(measure.high)}"
            rows.append((name, _number(measure.mean), interval, _number(measure.chance), str(measure.count)))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
        if self.threshold is not None:
            lines.append(f"recovered: PSNR above {self.threshold:g} dB")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        row[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
    ]
