"""The measured results of benchmark rows, and the files ``results.csv`` that hold these results."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from leakgauge.core.errors import FileError
from leakgauge.core.measure import Measure
from leakgauge.core.text import csv_text
from leakgauge.reproduction.metrics import row_metric, single
from leakgauge.reproduction.rows import Method, Row

#: The columns of ``results.csv``.
COLUMNS = (
    "date", "row", "method", "clients", "steps", "metric", "ours", "low", "high", "published", "chance",
    "seconds_per_client", "command",
)  # fmt: skip


@dataclass(frozen=True)
class RowResult:
    """The result of one method of one benchmark row, measured on some clients.

    Args:
        row: The benchmark row.
        method: The method, which names the attack and its options.
        clients: The number of attacked clients.
        steps: The largest number of attack steps over the clients.
        measures: A dictionary from the name of each metric to its measure.
        seconds: The mean time per client in seconds.
        extra: A dictionary of other named values, which are added to the JSON output.
    """

    row: Row
    method: Method
    clients: int
    steps: int
    measures: dict[str, Measure]
    seconds: float
    extra: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dictionary, which can be written as JSON."""
        return {
            "row": self.row.name,
            "method": self.method.name,
            "clients": self.clients,
            "steps": self.steps,
            "ours": {
                name: {"mean": measure.value, "low": measure.low, "high": measure.high}
                for name, measure in self.measures.items()
            },
            "published": self.method.published,
            "chance": {name: measure.chance for name, measure in self.measures.items() if measure.chance is not None},
            "seconds": self.seconds,
            "seconds_per_step": self.seconds / max(1, self.steps),
            **self.extra,
        }

    def beside(self, reference: RowResult) -> RowResult:
        """Return a copy of the result with one more measure, the speed-up over the reference method."""
        name = f"speedup_over_{reference.method.name.replace('-', '_')}"
        ratio = reference.seconds / self.seconds
        measures = {**self.measures, name: single(name, ratio, self.clients)}
        return replace(self, measures=measures, extra={**self.extra, name: ratio})


def check_saving(folders: Iterable[Path]) -> None:
    """Raise an error if results cannot be appended to the ``results.csv`` of a paper.

    Args:
        folders: The folders of the papers.
    """
    for path in sorted({folder / "results.csv" for folder in folders}):
        existed = path.exists()
        try:
            with path.open("a"):
                pass
            first = _first_line(path)
        except OSError as problem:
            reason = problem.strerror or problem
            raise FileError(
                f"{path}: cannot be written ({reason}). Use --no-save to only print the results"
            ) from problem
        if not existed:
            path.unlink()
        if first.strip() not in ("", ",".join(COLUMNS)):
            raise FileError(
                f"{path}: is not a table of results that Leakgauge wrote, so nothing is added. Move it away, or use "
                "--no-save to only print the results"
            )


def _first_line(path: Path) -> str:
    """Return the first line of a table, or an empty text if there is no table yet."""
    if not path.exists():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline(4096)


def save_result(result: RowResult, command: str) -> Path:
    """Append a result to the paper's ``results.csv``, with one line for each metric, and return the path of the file.

    Args:
        result: The result to append.
        command: The command line of the measurement.
    """
    path = result.row.folder / "results.csv"
    is_new = not _first_line(path).strip()
    with path.open("a", newline="") as file:
        lines = [
            [
                date.today().isoformat(), result.row.name, result.method.name, result.clients, result.steps, name,
                _text(measure.value), _text(measure.low), _text(measure.high),
                result.method.published.get(name, ""), _text(measure.chance), f"{result.seconds:.1f}", command,
            ]
            for name, measure in result.measures.items()
        ]  # fmt: skip
        file.write(csv_text([COLUMNS, *lines] if is_new else lines))
    return path


@dataclass(frozen=True)
class Line:
    """One line of ``results.csv``.

    Args:
        row: The name of the benchmark row.
        method: The name of the method.
        measure: The measured value with its interval and its chance level.
        steps: The largest number of attack steps over the clients.
        seconds: The mean time per client in seconds.
        date: The day of the measurement.
        command: The command line of the measurement.
    """

    row: str
    method: str
    measure: Measure
    steps: int
    seconds: float
    date: str
    command: str

    @property
    def is_short(self) -> bool:
        """Whether the benchmark row was measured with its short setting instead of the paper's setting."""
        return "--short" in self.command.split()


def read_results(folder: Path) -> list[Line]:
    """Return the lines of a paper's ``results.csv``, oldest first. The list is empty if there is no such file.

    Args:
        folder: The folder of the paper.
    """
    path = folder / "results.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(_lines(csv.DictReader(file)))


def _lines(rows: Iterable[dict[str, str]]) -> Iterable[Line]:
    for row in rows:
        measure = Measure(
            row["metric"],
            float(row["ours"]),
            _number(row["low"]),
            _number(row["high"]),
            chance=_number(row["chance"]),
            n=int(row["clients"]),
            of="clients",
            direction=row_metric(row["metric"]).direction,
        )
        seconds = float(row["seconds_per_client"])
        yield Line(row["row"], row["method"], measure, int(row["steps"]), seconds, row["date"], row["command"])


def _number(text: str) -> float | None:
    return float(text) if text else None


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
