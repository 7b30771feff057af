"""The reproduction status of a published value: *reproduced*, *partly*, *not*, *not run* or *-* (no status)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from leakgauge.core.measure import Measure
from leakgauge.reproduction.metrics import row_metric
from leakgauge.reproduction.results import Line
from leakgauge.reproduction.rows import Method, Row

#: The smallest number of clients with which a figure can count as reproduced.
ENOUGH_CLIENTS = 4
#: The share of the distance from chance to the published value from which a figure counts as partly reproduced.
PART_OF_THE_WAY = 0.5
#: If no chance level applies, a figure within this relative distance of the published value is partly reproduced.
NEAR = 0.1

RULES = f"""\
- **reproduced**: our 95% interval reaches the published value, or lies beyond it in the attacker's favour. At least \
{ENOUGH_CLIENTS} clients were attacked with the row's full setting. Where the published value beats chance, our \
interval beats chance too.
- **partly**: our interval reaches the published value, but one of the other conditions fails: fewer than \
{ENOUGH_CLIENTS} clients, the short setting, fewer steps, or an interval so wide that it includes chance. Or our \
interval beats chance, and our value covers at least half of the distance from chance to the published value. Where no \
chance level applies, our value lies within a tenth of the published value.
- **not**: measured, and neither of the above.
- **not run**: not measured.
- **-**: nothing is published for this method and metric, or the metric is a cost (iterations, seconds), which depends \
on the machine and on the optimiser.
"""


class Status(Enum):
    """The reproduction status of one published value, or of several values together."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not"
    NOT_RUN = "not run"
    NONE = "-"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Figure:
    """One metric of one method of a benchmark row, with our measurement.

    Args:
        row: The benchmark row.
        method: The method of the row, which is an attack with its options.
        metric: The name of the metric.
        line: The measurement that the page of the paper shows. It is ``None`` if there is no measurement.
    """

    row: Row
    method: Method
    metric: str
    line: Line | None = None

    @property
    def published(self) -> float | None:
        """The published value that our measurement is compared with, or ``None`` if nothing is published."""
        return self.row.published(self.method).get(self.metric)

    @property
    def is_full(self) -> bool:
        """Whether the measurement was made with the full setting, not the short one, and with all attack steps."""
        return self.line is not None and is_full(self.row, self.method, self.line)

    @property
    def status(self) -> Status:
        """The status of the figure, according to :data:`RULES`."""
        if self.published is None or row_metric(self.metric).cost:
            return Status.NONE
        if self.line is None:
            return Status.NOT_RUN
        measure, beats = self.line.measure, _beats_chance(self.line.measure, self.published)
        if _reaches(measure, self.published):
            convincing = self.is_full and measure.n >= ENOUGH_CLIENTS and (measure.above_chance or not beats)
            return Status.REPRODUCED if convincing else Status.PARTLY
        return Status.PARTLY if _is_near(measure, self.published, beats) else Status.NOT


def is_full(row: Row, method: Method, line: Line) -> bool:
    """Return whether a measurement was made with the full setting, not the short one, and with all attack steps.

    Args:
        row: The benchmark row.
        method: The method of the row, which is an attack with its options.
        line: The measurement.
    """
    if line.is_short and (row.short.changes or row.short.steps is not None):
        return False
    return "--steps" not in line.command.split() or line.steps >= method.options.get("steps", float("inf"))


def latest_of(row: Row, method: Method, lines: Iterable[Line]) -> dict[str, Line]:
    """Return, for each metric of a method, the measurement that the paper's page shows.

    The measurement with the most clients is chosen. Among measurements with equally many clients, a full setting is
    preferred to a short setting. Then more steps are preferred, and then the newest measurement.

    Args:
        row: The benchmark row.
        method: The method of the row, which is an attack with its options.
        lines: The measurements of the method, oldest first.
    """
    chosen: dict[str, tuple[tuple[int, bool, int, str, int], Line]] = {}
    for place, line in enumerate(lines):
        rank = (line.measure.n, is_full(row, method, line), line.steps, line.date, place)
        metric = line.measure.name
        if metric not in chosen or rank > chosen[metric][0]:
            chosen[metric] = rank, line
    return {metric: line for metric, (_, line) in chosen.items()}


def overall(statuses: Sequence[Status]) -> Status:
    """Return the status of several published values together. Values with the status ``-`` (no status) are ignored."""
    counted = {status for status in statuses if status is not Status.NONE}
    if not counted:
        return Status.NONE
    if len(counted) == 1:
        return counted.pop()
    return Status.PARTLY if counted & {Status.REPRODUCED, Status.PARTLY} else Status.NOT


def _reaches(measure: Measure, published: float) -> bool:
    if measure.direction == "higher":
        return (measure.value if measure.high is None else measure.high) >= published
    return (measure.value if measure.low is None else measure.low) <= published


def _beats_chance(measure: Measure, value: float) -> bool:
    """Return whether a value is better for the attacker than the chance level of a measure."""
    if measure.chance is None:
        return False
    return value > measure.chance if measure.direction == "higher" else value < measure.chance


def _is_near(measure: Measure, published: float, beats: bool) -> bool:
    """Return whether a measure that does not reach the published value is near enough for the status *partly*."""
    if beats and measure.chance is not None:
        distance = abs(published - measure.chance)
        return measure.above_chance and (measure.excess or 0.0) >= PART_OF_THE_WAY * distance
    return abs(measure.value - published) <= NEAR * abs(published)
