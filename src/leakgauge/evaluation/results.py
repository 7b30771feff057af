"""Hold the measures of one client, and print them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leakgauge.core.errors import UnknownName
from leakgauge.core.measure import Measure
from leakgauge.evaluation.pairing import Pairing


@dataclass(frozen=True, eq=False)
class Score:
    """How much of one client's data came back: ``print(score)``, or ``score["psnr"].value``."""

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
            rows.append((name, _number(measure.value), measure.interval(), _number(measure.chance), str(measure.n)))
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
