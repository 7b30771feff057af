"""The functions that run benchmark rows.

A task measures one method on one client. If a row attacks all clients together, a task measures one method on all
clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, TasksFailed, UnknownName
from leakgauge.core.own_files import check_own
from leakgauge.core.progress import Report
from leakgauge.reproduction.kinds import KINDS, Job, Kind, Outcome
from leakgauge.reproduction.metrics import over_clients
from leakgauge.reproduction.results import RowResult
from leakgauge.reproduction.rows import Method, Row
from leakgauge.runtime import Task, Watch
from leakgauge.runtime.cache import run_cached


@dataclass(frozen=True)
class Choice:
    """The user's options for a run of benchmark rows.

    Args:
        methods: The names of the methods to run. If no name is given, all methods run.
        clients: The number of attacked clients. The default is the number in the row.
        skip: The number of clients to leave out at the beginning, for example because they were measured elsewhere.
        steps: The number of attack steps. The default is the number in the method's options.
        seed: The seed of the run. Equal seeds give equal results.
        short: Whether to use the short setting of each row that has one.
        pictures: The folder for pictures of reconstructions, attacks and searches. By default, nothing is drawn.
    """

    methods: Sequence[str] = ()
    clients: int | None = None
    skip: int = 0
    steps: int | None = None
    seed: int = 0
    short: bool = False
    pictures: Path | None = None


def run_rows(
    rows: Sequence[Row],
    choice: Choice | None = None,
    *,
    engine: str = "auto",
    jobs: int | None = 1,
    watch: Watch | None = None,
    cache: Location | None = None,
) -> Iterator[RowResult]:
    """Run benchmark rows, and yield the result of each method as soon as the method has attacked its last client.

    The results contain the speed-up over the reference method, if the row has one. The result of the reference method
    is therefore yielded first.

    Args:
        rows: The benchmark rows.
        choice: The options of the run.
        engine: The engine that runs the tasks (:mod:`leakgauge.runtime.engines`).
        jobs: The number of tasks that run at a time. ``None`` means one per core.
        watch: The listener that receives the progress of the tasks.
        cache: The folder that holds finished tasks. Finished tasks are not run again.
    """
    choice = choice or Choice()
    if choice.clients is not None and choice.clients < 1:
        raise InvalidInput(f"clients must be at least 1, not {choice.clients}")
    planned = [job for row in rows for job in _jobs(row, choice)]
    _check(planned)
    tasks = [Task(_task_name(job), run_job, {"job": job}, kind=f"{job.row.name} {job.method.name}") for job in planned]
    cached = [] if cache is None else zip(tasks, planned, strict=True)  # a definition needs the data
    definitions = {task.name: job.definition for task, job in cached}
    collected = _Collected(planned)
    try:
        for task, outcome in run_cached(tasks, definitions, cache, engine=engine, jobs=jobs, watch=watch):
            yield from collected.add(task.arguments["job"], outcome)
    except TasksFailed:
        yield from collected.waiting  # the reference method of these results failed
        raise


def run_job(job: Job, report: Report) -> Outcome:
    """Measure one method of a benchmark row on one client, or on all clients together.

    Args:
        job: The row, the method and the client.
        report: The function that is called after each step.
    """
    return KINDS[job.row.kind].run(job, report)


def _jobs(row: Row, choice: Choice) -> Iterator[Job]:
    """Yield the jobs that measure one benchmark row."""
    kind = _kind_of(row)
    methods = [row.method(name) for name in choice.methods] or list(row.methods.values())
    clients, steps = choice.clients, choice.steps
    if choice.short:
        clients, steps = clients or row.short.clients, steps or row.short.steps
        row = row.shortened()
    clients = row.clients if clients is None else clients
    common: dict[str, Any] = {"seed": choice.seed, "steps": steps, "pictures": choice.pictures}
    if kind.together:
        if choice.skip:
            raise InvalidInput(f"The clients of {row.name} are attacked together, so --skip cannot leave out any.")
        yield from (Job(row, method, clients=clients, **common) for method in methods)
        return
    for index in range(choice.skip, choice.skip + clients):
        yield from (Job(row, method, index=index, **common) for method in methods)


def _check(planned: Sequence[Job]) -> None:
    """Raise an error if any planned job cannot run, or would replace a file that Leakgauge did not write."""
    last = {(job.row.name, job.method.name): job for job in planned}  # of one method, the client with the highest index
    for job in last.values():
        KINDS[job.row.kind].check(job)
    for job in planned:
        for path in KINDS[job.row.kind].drawn(job):
            check_own(path)


def _kind_of(row: Row) -> Kind:
    """Return the kind of a benchmark row, or raise an error if the row has tables that its kind does not read."""
    if row.kind not in KINDS:
        raise UnknownName(f"kind of row ({row.name})", row.kind, KINDS)
    for table in row.setting.tables:
        if table not in KINDS[row.kind].tables:
            raise InvalidInput(f"{row.name}: a row of kind {row.kind} does not read [{table}]. Remove that table.")
    return KINDS[row.kind]


def _task_name(job: Job) -> str:
    name = f"{job.row.name} {job.method.name}"
    return name if KINDS[job.row.kind].together else f"{name} client {job.index}"


@dataclass
class _Collected:
    """A collector that combines the outcomes of finished jobs into one result for each method.

    Jobs may finish in any order. In a result, the outcomes are always in the order of clients.

    Args:
        jobs: All planned jobs.
        outcomes: A dictionary from the row, the method and the client of each finished job to the outcome of the job.
        references: A dictionary from rows to the results of their reference methods.
        waiting: The complete results that wait for the result of the reference method.
    """

    jobs: Sequence[Job]
    outcomes: dict[tuple[str, str, int], Outcome] = field(default_factory=dict)
    references: dict[str, RowResult] = field(default_factory=dict)
    waiting: list[RowResult] = field(default_factory=list)

    def add(self, job: Job, outcome: Outcome) -> Iterator[RowResult]:
        """Add the outcome of a job, and yield the results that are now complete."""
        self.outcomes[_key(job)] = outcome
        planned = [_key(other) for other in self.jobs if _key(other)[:2] == _key(job)[:2]]
        if not all(key in self.outcomes for key in planned):
            return
        result = _join(job.row, job.method, [self.outcomes[key] for key in planned])
        if job.method.name == job.row.timed_against:
            self.references[job.row.name] = result
            yield result
        elif any(_key(other)[:2] == (job.row.name, job.row.timed_against) for other in self.jobs):
            self.waiting.append(result)
        else:
            yield result
        ready = [waiting for waiting in self.waiting if waiting.row.name in self.references]
        self.waiting = [waiting for waiting in self.waiting if waiting.row.name not in self.references]
        yield from (waiting.beside(self.references[waiting.row.name]) for waiting in ready)


def _key(job: Job) -> tuple[str, str, int]:
    return job.row.name, job.method.name, job.index


def _join(row: Row, method: Method, outcomes: Sequence[Outcome]) -> RowResult:
    """Combine the outcomes of one method on its clients into one result. The outcomes are in the order of clients."""
    if KINDS[row.kind].together:
        (outcome,) = outcomes
        return RowResult(row, method, outcome.clients, outcome.steps, outcome.measures, outcome.seconds, outcome.extra)
    return RowResult(
        row,
        method,
        len(outcomes),
        max(outcome.steps for outcome in outcomes),
        over_clients([outcome.measures for outcome in outcomes]),
        sum(outcome.seconds for outcome in outcomes) / len(outcomes),
    )
