"""One ``map`` over independent tasks, with three engines and the same results.

================  =====================================================================================================
``in-process``    here, one after the other
``processes``     one single-threaded process a core (:mod:`leakgauge.runtime.processes`)
``ray``           a Ray cluster on this machine, started for the sweep; ``ray:ADDRESS`` is one that runs, ``ray:auto``
                  the one around this machine (:mod:`leakgauge.runtime.on_ray`, extra ``ray``)
``auto``          here, and in processes once that pays: when the work has taken longer than processes take to start
================  =====================================================================================================

A task fails by itself. One that hangs, whose worker dies or that runs out of memory is tried again; what fails in the
end is told in one exception when all the others are done.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch

from leakgauge.core.errors import InvalidInput, LeakgaugeError, MissingExtra, TasksFailed, UnknownName
from leakgauge.runtime.driver import drive
from leakgauge.runtime.processes import Processes, usable_cores
from leakgauge.runtime.tasks import Task, Watch, may_pass, sentence

ENGINES = ("auto", "in-process", "processes", "ray")
#: Seconds that a process takes to start and to load torch (2 to 3 on two cores).
START = 3.0


def check_engine(engine: str, jobs: int | None = None) -> None:
    """Refuse an engine that does not exist, is not installed, or cannot do so many tasks at a time."""
    name = engine.partition(":")[0]
    if name not in ENGINES or (":" in engine and name != "ray"):
        raise UnknownName("engine", engine, [*ENGINES, "ray:ADDRESS"])
    if engine == "ray:":
        raise InvalidInput("the engine ray: lacks an address; write ray:auto, ray:HOST:PORT, or ray to start one")
    if name == "in-process" and jobs is not None and jobs > 1:
        raise InvalidInput(f"the engine in-process does one task at a time, not {jobs}; use processes, or no jobs")
    if name == "ray" and importlib.util.find_spec("ray") is None:
        raise MissingExtra("the engine ray", "ray", "ray")


def run_tasks(
    tasks: Sequence[Task],
    *,
    engine: str = "auto",
    jobs: int | None = 1,
    watch: Watch | None = None,
    common: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Task, Any]]:
    """Yield each task with its result, as they finish. The results depend neither on ``engine`` nor on ``jobs``.

    ``jobs`` tasks run at a time; ``None`` is one a core. ``common`` are arguments that all tasks get, sent once to a
    worker. At the end :class:`~leakgauge.core.errors.TasksFailed` tells what failed, if anything did; where all tasks failed
    by a mistake of the caller's, the first of them is raised as it is. Ctrl-C ends the workers; what was yielded before
    is the caller's.
    """
    check_engine(engine, jobs)
    watch, common = watch or Watch(), common or {}
    failures: dict[str, Exception] = {}
    watch.planned(tasks)
    if tasks:
        yield from _on_engine(tasks, engine, jobs, watch, common, failures)
    if failures:
        first = next(iter(failures.values()))
        if len(failures) == len(tasks) and all(isinstance(one, LeakgaugeError) for one in failures.values()):
            raise first
        raise TasksFailed({name: sentence(one) for name, one in failures.items()}, len(tasks)) from first


def _on_engine(
    tasks: Sequence[Task],
    engine: str,
    jobs: int | None,
    watch: Watch,
    common: Mapping[str, Any],
    failures: dict[str, Exception],
) -> Iterator[tuple[Task, Any]]:
    if engine.startswith("ray"):
        from leakgauge.runtime.on_ray import OnRay

        with OnRay(engine.partition(":")[2], jobs, common) as cluster:
            yield from drive(cluster, tasks, watch, failures)
        return
    jobs = min(jobs or usable_cores(), len(tasks))
    if engine == "in-process" or (engine == "auto" and jobs == 1):
        yield from _here(tasks, watch, common, failures)
        return
    rest = tasks
    if engine == "auto":
        rest = yield from _here(tasks, watch, common, failures, patience=START)
    if rest:
        with Processes(min(jobs, len(rest)), common) as workers:
            yield from drive(workers, rest, watch, failures)


class _Pays(BaseException):
    """Ends a task here, since it pays to start processes."""


def _here(
    tasks: Sequence[Task],
    watch: Watch,
    common: Mapping[str, Any],
    failures: dict[str, Exception],
    patience: float = math.inf,
) -> Generator[tuple[Task, Any], None, Sequence[Task]]:
    """Do tasks one after the other; after ``patience`` seconds, give back those that are left, if they are several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: the number of threads may change the last bits
    deadline = time.monotonic() + patience
    try:
        for index, task in enumerate(tasks):
            several = index + 1 < len(tasks)
            if several and time.monotonic() > deadline:
                return tasks[index:]

            def report(step: int, total: int | None, loss: float, task: Task = task, several: bool = several) -> None:
                watch.step(task, step, total, loss)
                if several and time.monotonic() > deadline:
                    raise _Pays

            try:
                result = _try(task, watch, {**common, **task.arguments, "report": report})
            except _Pays:
                watch.again(task, "the work goes on in processes")
                return tasks[index:]
            except Exception as problem:
                failures[task.name] = problem
                watch.failed(task, sentence(problem))
            else:
                watch.done(task)
                yield task, result
    finally:
        torch.set_num_threads(threads)
    return ()


def _try(task: Task, watch: Watch, arguments: Mapping[str, Any]) -> Any:
    for _ in range(task.tries - 1):
        watch.began(task)
        try:
            return task.function(**arguments)
        except Exception as problem:
            if not may_pass(problem):
                raise
            watch.again(task, sentence(problem))
    watch.began(task)
    return task.function(**arguments)
