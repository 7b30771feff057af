"""Run rows: one task a client and method, ours beside the published figure, beside chance."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from leakgauge import attacks
from leakgauge.attacks.inversion.labels import Labels, LastLayer
from leakgauge.attacks.inversion.refined_labels import RefinedLabels
from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, TasksFailed, UnknownName
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.evaluation import METRICS, Interval, label_error_chance, label_errors, mean_interval
from leakgauge.reproduction.kinds import epochs
from leakgauge.reproduction.kinds.linear import rebuild_optimum
from leakgauge.reproduction.kinds.local_models import rebuild_models
from leakgauge.reproduction.kinds.many_clients import TOGETHER
from leakgauge.reproduction.kinds.reconstruction import reconstruct_client
from leakgauge.reproduction.kinds.weight_search import search_weights
from leakgauge.reproduction.rows import Method, Row
from leakgauge.reproduction.setting import client_of
from leakgauge.runtime import Task, Watch
from leakgauge.runtime.cache import run_cached

#: What one client gave: a value and a chance level a metric, the steps and seconds it took.
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One method of one row, measured on some clients."""

    row: Row
    method: Method
    clients: int
    steps: int
    ours: dict[str, Interval]
    chance: dict[str, float]
    seconds: float
    extra: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form of every benchmark: one plain object."""
        return {
            "row": self.row.name,
            "method": self.method.name,
            "clients": self.clients,
            "steps": self.steps,
            "ours": {name: {"mean": v.mean, "low": v.low, "high": v.high} for name, v in self.ours.items()},
            "published": self.method.published,
            "chance": self.chance,
            "seconds": self.seconds,
            "seconds_per_step": self.seconds / max(1, self.steps),
            **self.extra,
        }

    def beside(self, reference: Figure) -> Figure:
        """The same figure with how many times faster a client is attacked than by the row's reference."""
        name, ratio = f"speedup_over_{reference.method.name.replace('-', '_')}", reference.seconds / self.seconds
        return replace(self, ours={**self.ours, name: Interval(ratio, None, None)}, extra={**self.extra, name: ratio})


def run_rows(
    rows: Sequence[Row],
    *,
    methods: Sequence[str] = (),
    clients: int | None = None,
    skip: int = 0,
    steps: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int | None = 1,
    watch: Watch | None = None,
    pictures: Path | None = None,
    short: bool = False,
    folder: Location | None = None,
) -> Iterator[Figure]:
    """Run rows on ``clients`` clients each (``None``: as many as the row says, or one), and yield each method's figure
    as soon as its last client is done; where the row has a reference, as soon as that is done too. The first ``skip``
    clients are left out: they may have been measured elsewhere. What came back, the course of attacks where rows record
    it, and searches are drawn into the folder ``pictures``. ``short`` takes a row's short setting, where it has one,
    for what is not said: fewer steps or clients, which two cores finish. What tasks give is kept in ``folder``, if
    there is one, and not measured again. ``engine`` and ``jobs`` say where they run (:mod:`leakgauge.runtime.engines`).
    """
    if clients is not None and clients < 1:
        raise InvalidInput(f"clients must be at least 1, not {clients}")
    tasks: list[Task] = []
    owners: dict[str, tuple[Row, Method]] = {}
    for row in rows:
        chosen = [row.method(name) for name in methods] or list(row.methods.values())
        less = row.short if short else {}
        row = replace(row, setting={**row.setting, **less.get("setting", {})})
        number, limit = clients or less.get("clients"), steps or less.get("steps")
        for task, method in _tasks(row, chosen, number, skip, limit, seed, pictures):
            tasks.append(task)
            owners[task.name] = row, method
    wanted = {(row.name, method.name) for row, method in owners.values()}
    defined_by = {task.name: _definition(*owners[task.name], task) for task in tasks}
    outcomes: dict[str, Outcome] = {}
    waiting: list[Figure] = []
    references: dict[str, Figure] = {}
    try:
        for task, outcome in run_cached(tasks, defined_by, folder, engine=engine, jobs=jobs, watch=watch):
            outcomes[task.name] = outcome
            row, method = owners[task.name]
            names = [name for name, (one, other) in owners.items() if one is row and other is method]
            if not outcomes.keys() >= set(names):
                continue
            done = [outcomes[name] for name in names]  # in the order of the clients, not that of their ends
            figure = Figure(row, method, **done[0]) if row.kind in WHOLE else _figure(row, method, done)
            if method.name == row.reference:
                references[row.name] = figure
            if method.name == row.reference or (row.name, row.reference) not in wanted:
                yield figure
            else:
                waiting.append(figure)
            ready = [one for one in waiting if one.row.name in references]
            waiting = [one for one in waiting if one.row.name not in references]
            yield from (one.beside(references[one.row.name]) for one in ready)
    except TasksFailed:
        yield from waiting  # for a reference that failed
        raise


def _tasks(
    row: Row,
    methods: Sequence[Method],
    clients: int | None,
    skip: int,
    steps: int | None,
    seed: int,
    pictures: Path | None,
) -> Iterator[tuple[Task, Method]]:
    """The work of one row: a task a method where clients are attacked together, else one a client and method."""
    number = row.setting.get("clients", 1) if clients is None else clients
    common: dict[str, Any] = {"setting": row.setting, "steps": steps, "seed": seed}
    if row.kind in DRAWN:
        common["pictures"] = pictures / row.name if pictures and row.kind == "reconstruction" else pictures
    if row.kind in WHOLE:
        if skip:
            raise InvalidInput(f"the clients of {row.name} are attacked together: none can be left out (skip)")
        for method in methods:
            arguments = {**common, "method": method, "clients": number}
            name = f"{row.name} {method.name}"
            yield Task(name, WHOLE[row.kind], arguments, kind=name), method
        return
    for index in range(skip, skip + number):
        for method in methods:
            function = KINDS[row.kind] if row.kind in KINDS else _unknown(row)
            name = f"{row.name} {method.name}"
            arguments = {**common, "method": method, "index": index}
            yield Task(f"{name} client {index}", function, arguments, kind=name), method


def _definition(row: Row, method: Method, task: Task) -> dict[str, Any]:
    """Everything that an outcome depends on, as plain values."""
    arguments = {name: value for name, value in task.arguments.items() if name not in ("method", "pictures")}
    return {"kind": row.kind, "attack": method.attack, "options": method.options, **arguments}


def estimate_labels(
    setting: dict[str, Any], method: Method, index: int, steps: int | None, seed: int, report: Report
) -> Outcome:
    """Estimate one client's label counts and count the errors."""
    observation, truth = client_of(setting, index, seed)
    began = time.perf_counter()
    options = dict(method.options)
    refine = options.pop("refine", None)
    first = LastLayer(dummies=3000, **options)
    source: Labels = first if refine is None else RefinedLabels(attacks.surrogate(steps=refine), first)
    labels = source(observation, generator(seed, "labels", index))
    seconds = time.perf_counter() - began
    counts = truth.label_counts
    reference = truth.reference_targets
    known = None if reference is None else torch.bincount(reference, minlength=len(counts))
    wrong = float(label_errors(labels, truth.targets))
    return {
        "values": {"label_errors": (wrong, _value(label_error_chance(counts, known)))},
        "steps": 1,
        "seconds": seconds,
    }


def _value(chance: Any) -> float:
    return float(getattr(chance, "value", chance))


#: Kinds of which a task is a method, not a client; those that can draw pictures.
WHOLE = {**TOGETHER, "linear": rebuild_optimum, "local_models": rebuild_models}
DRAWN = ("reconstruction", "stopping", "search", "local_models")
KINDS = {"reconstruction": reconstruct_client, "labels": estimate_labels, **epochs.KINDS, "search": search_weights}
#: Between which values the metrics lie that only benchmarks have.
LIMITS = {"matching_rate": (0.0, 1.0), "unexplained": (0.0, math.inf)}


def _unknown(row: Row) -> Any:
    raise UnknownName(f"kind of row ({row.name})", row.kind, [*KINDS, *WHOLE])


def _figure(row: Row, method: Method, outcomes: Sequence[Outcome]) -> Figure:
    metrics = outcomes[0]["values"]
    columns = {name: [outcome["values"][name] for outcome in outcomes] for name in metrics}
    return Figure(
        row,
        method,
        len(outcomes),
        max(outcome["steps"] for outcome in outcomes),
        {
            name: mean_interval(
                torch.tensor([value for value, _ in pairs]),
                limits=LIMITS[name] if name in LIMITS else METRICS[name].limits,
            )
            for name, pairs in columns.items()
        },
        {name: sum(chance for _, chance in pairs) / len(pairs) for name, pairs in columns.items()},
        sum(outcome["seconds"] for outcome in outcomes) / len(outcomes),
    )


HEAD = (
    "date", "row", "method", "clients", "steps", "metric", "ours", "low", "high", "published", "chance",
    "seconds_per_client", "command",
)  # fmt: skip


def keep(figure: Figure, command: str) -> Path:
    """Add a figure to the benchmark's ``results.csv``, one line a metric."""
    path = figure.row.folder / "results.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(HEAD)
        for name, value in figure.ours.items():
            writer.writerow(
                [
                    date.today().isoformat(), figure.row.name, figure.method.name, figure.clients, figure.steps, name,
                    _short(value.mean), _short(value.low), _short(value.high), figure.method.published.get(name, ""),
                    _short(figure.chance.get(name)), f"{figure.seconds:.1f}", command,
                ]
            )  # fmt: skip
    return path


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
