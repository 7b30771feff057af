"""The engines that run independent tasks. The engine is chosen by its name, and all engines give the same results.

================  =====================================================================================================
``in-process``    in this process, one task after another
``processes``     in single-threaded worker processes, usually one per core (:mod:`leakgauge.runtime.processes`)
``ray``           on a Ray cluster that is started on this machine (:mod:`leakgauge.runtime.on_ray`)
``ray:ADDRESS``   on a running Ray cluster
``ray:auto``      on the running Ray cluster that this machine belongs to
``auto``          first in this process, and later in worker processes if the tasks take long
================  =====================================================================================================

Ray is an optional dependency, which the extra ``ray`` installs. The engine ``auto`` changes to worker processes when
the tasks have taken longer than processes take to start. It does not start processes if the main script has no
``if __name__ == "__main__"``.

A task that fails does not stop the other tasks. A task is restarted if it hangs, if its worker dies or if it runs out
of memory. At the end, one exception lists the tasks that failed.

A task in a worker counts as hung if it reports nothing for six hours. The environment variable ``LEAKGAUGE_PATIENCE``
sets another number of seconds. A task that hangs twice has failed. A task in this process cannot be ended, so it is
never restarted for this reason.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leakgauge.core.errors import InvalidInput, LeakgaugeError, MissingExtra, TasksFailed, UnknownName
from leakgauge.core.exits import no_exit
from leakgauge.runtime.ctrl_c import Stop
from leakgauge.runtime.driver import drive, patience
from leakgauge.runtime.processes import Processes, usable_cores
from leakgauge.runtime.tasks import Task, Watch, in_one_line, is_transient
from leakgauge.runtime.threads import one_thread

ENGINES = ("auto", "in-process", "processes", "ray")
#: The seconds that a process takes to start and to load torch (2 to 3 on two cores).
START = 3.0


def check_engine(engine: str, jobs: int | None = None) -> None:
    """Raise an error if an engine does not exist, is not installed, or cannot run ``jobs`` tasks at a time.

    Args:
        engine: The name of the engine, such as ``processes``, or ``ray:ADDRESS`` for a running Ray cluster.
        jobs: The number of tasks that run at a time. By default, one per core.
    """
    name = engine.partition(":")[0]
    if name not in ENGINES or (":" in engine and name != "ray"):
        raise UnknownName("engine", engine, [*ENGINES, "ray:ADDRESS"])
    if engine == "ray:":
        raise InvalidInput(
            "the engine 'ray:' lacks an address. Write ray:auto or ray:HOST:PORT, or ray to start a cluster here"
        )
    if name == "in-process" and jobs is not None and jobs > 1:
        raise InvalidInput(
            f"the engine in-process runs one task at a time, not {jobs}. Use the engine processes, or leave out jobs"
        )
    patience()
    if name == "ray" and importlib.util.find_spec("ray") is None:
        raise MissingExtra("the engine ray", "ray", "ray")


def run_tasks(
    tasks: Sequence[Task],
    *,
    engine: str = "auto",
    jobs: int | None = 1,
    watch: Watch | None = None,
    common: Mapping[str, Any] | None = None,
    stop: Stop | None = None,
) -> Iterator[tuple[Task, Any]]:
    """Run tasks, and yield each task with its result as soon as it finishes.

    The results depend neither on ``engine`` nor on ``jobs``. Ctrl-C ends the workers. With ``stop``, running tasks get
    ``KeyboardInterrupt`` at their next report, and those that return a result all the same are still yielded. This
    function then raises ``KeyboardInterrupt``. Tasks on a Ray cluster are ended at once.

    Args:
        tasks: The tasks. Their names must differ.
        engine: The engine that runs the tasks: ``auto``, ``in-process``, ``processes``, ``ray`` or ``ray:ADDRESS``.
        jobs: The number of tasks that run at a time. ``None`` means one per core.
        watch: The listener that receives the progress.
        common: The keyword arguments that are passed to every task. They are sent to each worker only once.
        stop: The object that counts Ctrl-C (:func:`leakgauge.runtime.ctrl_c.stopping`). By default, Ctrl-C ends all
            tasks at once.

    Raises:
        TasksFailed: Some tasks failed. The error is raised when all other tasks are done.
        LeakgaugeError: All tasks failed with an error of Leakgauge, such as a wrong argument. The first error is raised
            unchanged.
    """
    check_engine(engine, jobs)
    watch, common, stop = watch or Watch(), common or {}, stop or Stop()
    failures: dict[str, Exception] = {}
    watch.planned(tasks)
    if tasks:
        try:
            yield from _on_engine(tasks, engine, jobs, watch, common, failures, stop)
        except LeakgaugeError:
            stop.check()  # Ctrl-C in a terminal also ends workers that are not ready yet
            raise
    if failures:
        first = next(iter(failures.values()))
        if len(failures) == len(tasks) and all(isinstance(error, LeakgaugeError) for error in failures.values()):
            raise first
        raise TasksFailed({name: in_one_line(error) for name, error in failures.items()}, len(tasks)) from first


def _on_engine(
    tasks: Sequence[Task],
    engine: str,
    jobs: int | None,
    watch: Watch,
    common: Mapping[str, Any],
    failures: dict[str, Exception],
    stop: Stop,
) -> Iterator[tuple[Task, Any]]:
    if engine.startswith("ray"):
        from leakgauge.runtime.on_ray import OnRay

        with OnRay(engine.partition(":")[2], jobs, common) as cluster:
            yield from drive(cluster, tasks, watch, failures, stop)
        return
    jobs = min(jobs or usable_cores(), len(tasks))
    if engine == "in-process" or (engine == "auto" and (jobs == 1 or not _can_start_processes())):
        yield from _here(tasks, watch, common, failures, stop)
        return
    rest = tasks
    if engine == "auto":
        rest = yield from _here(tasks, watch, common, failures, stop, patience=START)
    if rest:
        with Processes(min(jobs, len(rest)), common) as workers:
            yield from drive(workers, rest, watch, failures, stop)


def _can_start_processes() -> bool:
    """Return whether worker processes can import the main script without running the whole script again."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:  # an interactive session, or python -c
        return True
    try:
        return "__main__" in Path(path).read_text(errors="replace")
    except OSError:
        return True


class _ProcessesPay(BaseException):
    """The exception that stops a task in this process, so that it is restarted in a worker process."""


def _here(
    tasks: Sequence[Task],
    watch: Watch,
    common: Mapping[str, Any],
    failures: dict[str, Exception],
    stop: Stop,
    patience: float = math.inf,
) -> Generator[tuple[Task, Any], None, Sequence[Task]]:
    """Run tasks one after another in this process, and yield each task with its result.

    After ``patience`` seconds, stop and return the unfinished tasks. If only one task is left, finish it instead.
    """
    deadline = time.monotonic() + patience
    with one_thread():
        for index, task in enumerate(tasks):
            stop.check()
            several = index + 1 < len(tasks)
            if several and time.monotonic() > deadline:
                return tasks[index:]

            def report(step: int, total: int | None, loss: float, task: Task = task, several: bool = several) -> None:
                watch.step(task, step, total, loss)
                stop.check()
                if several and time.monotonic() > deadline:
                    raise _ProcessesPay

            try:
                result = _try(task, watch, {**common, **task.arguments, "report": report})
            except _ProcessesPay:
                watch.again(task, "the work continues in worker processes")
                return tasks[index:]
            except Exception as problem:
                failures[task.name] = problem
                watch.failed(task, in_one_line(problem))
            else:
                watch.done(task)
                yield task, result
        stop.check()
    return ()


def _try(task: Task, watch: Watch, arguments: Mapping[str, Any]) -> Any:
    """Run a task and return its result. After an error that may be temporary, run the task again."""
    for _ in range(task.tries - 1):
        watch.began(task)
        try:
            with no_exit():
                return task.function(**arguments)
        except Exception as problem:
            if not is_transient(problem):
                raise
            watch.again(task, in_one_line(problem))
    watch.began(task)
    with no_exit():
        return task.function(**arguments)
