"""The loop that runs tasks on workers. After a failure, it restarts the task if that may help, or gives the task up.

The process that runs this loop is called the driver.

**Memory.** A task starts only if it fits into the free memory. Tasks of the same kind need about the same memory. The
expected memory of a task is the larger of two values. One is the memory that the task was created with, and the other
is the largest peak that was measured for its kind. Workers send their peak memory with every report, once a second, and
at the end of a task. If nothing is known about a kind, only one task of this kind starts. The others wait until this
task has reported a step, has ended or has run for ten seconds. If a running task has not yet taken all of its expected
memory, the rest is reserved. At least one task always runs, even if it does not fit.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from leakgauge.core.errors import InvalidInput
from leakgauge.runtime.ctrl_c import Stop
from leakgauge.runtime.tasks import PACE, Task, Watch, WorkerLost, in_one_line

#: The seconds of work after which the peak memory of a task so far counts as its need.
SETTLED = 10.0


#: The environment variable with the number of seconds without a report after which a task counts as hung.
PATIENCE = "LEAKGAUGE_PATIENCE"
#: The default of this number. No honest step of an attack takes so long.
_SIX_HOURS = 6 * 3600.0
#: The seconds that running tasks get after Ctrl-C, in which each must reach its next report and return its result.
GRACE = 120.0
#: The number of starts after which a task that hangs is given up.
HUNG = 2


def patience() -> float:
    """Return the number of seconds without a report after which a task counts as hung."""
    text = os.environ.get(PATIENCE, "")
    if not text:
        return _SIX_HOURS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidInput(f"{PATIENCE} must be a number of seconds above 0, not {text!r}")
    return seconds


class Event(NamedTuple):
    """A message to the driver about one attempt, which is one start of a task on a worker.

    Args:
        attempt: The index of the attempt. A restarted task gets a new index.
        kind: The type of the message. A worker sends ``begun``, ``step``, ``beat`` (its peak memory, once a second),
            ``done`` or ``failed``. The type is ``lost`` if the worker died.
        values: The content of the message, such as the step and the loss.
    """

    attempt: int
    kind: str
    values: tuple[Any, ...] = ()


class Workers(Protocol):
    """The interface of the workers that run tasks. Each start of a task on a worker is called an attempt."""

    def slots(self) -> int:
        """Return the number of tasks that may run at a time."""

    def start(self, attempt: int, task: Task, need: int | None) -> None:
        """Start a task on a worker.

        Args:
            attempt: The index of this attempt to run the task.
            task: The task to start.
            need: The memory in bytes that the task is expected to need, or ``None`` if it is unknown.
        """

    def events(self, timeout: float) -> list[Event]:
        """Return the new messages of workers. If there are none, wait for at most ``timeout`` seconds."""

    def stop(self, attempt: int) -> None:
        """Kill the worker that runs a task. Later messages about the task are not returned.

        ``attempt`` is the index with which the task was started.
        """

    def interrupt(self) -> bool:
        """Let all running tasks end at their next report, and return whether these workers can do so."""

    def free(self) -> int | None:
        """Return the free memory in bytes, or ``None`` if the workers limit their memory themselves, as Ray does."""

    def largest(self) -> int:
        """Return the largest amount of memory in bytes that one task can get."""


@dataclass
class _Attempt:
    """A task that runs on a worker, with its start time, the time of its last report, and its peak memory so far."""

    task: Task
    tries: int  # including this one
    began: float | None = None
    heard: float | None = None
    peak: int = 0


def drive(
    workers: Workers, tasks: Sequence[Task], watch: Watch, failures: dict[str, Exception], stop: Stop
) -> Iterator[tuple[Task, Any]]:
    """Run tasks on workers, and yield each task with its result as soon as it finishes.

    Args:
        workers: The workers that run the tasks.
        tasks: The tasks to run.
        watch: The listener that receives the progress.
        failures: The dictionary that receives the error of each failed task. The key is the name of the task.
        stop: The object that counts Ctrl-C.
    """
    loop = _Loop(workers, tasks, watch, failures)
    while loop.waiting or loop.running:
        if stop.requested:
            loop.wind_up()
        loop.start_fitting()
        for event in workers.events(PACE):
            yield from loop.handle(event)
        loop.stop_hung()
    stop.check()


class _Loop:
    """The state of the loop: the waiting tasks, the running tasks, and the peak memory of each kind of task."""

    def __init__(self, workers: Workers, tasks: Sequence[Task], watch: Watch, failures: dict[str, Exception]) -> None:
        self.workers, self.watch, self.failures = workers, watch, failures
        self.waiting = [(task, 1) for task in tasks]
        self.running: dict[int, _Attempt] = {}
        self.peaks: dict[str, int] = {}
        self.numbers = itertools.count()
        self.patience = patience()
        self.ends: float | None = None

    def wind_up(self) -> None:
        """Start no further task, and let the running tasks return what they have. After :data:`GRACE`, end them."""
        now = time.monotonic()
        if self.ends is None:
            self.ends = now + GRACE if self.workers.interrupt() else now
        self.waiting = []
        for number, attempt in list(self.running.items()):
            if attempt.began is None or now >= self.ends:
                self.running.pop(number)
                self.workers.stop(number)

    def start_fitting(self) -> None:
        """Start waiting tasks while workers and memory are free. Give up tasks that need more memory than there is."""
        slots = self.workers.slots()
        if len(self.running) >= slots:
            return
        free, left = self._free(), []
        for task, tries in self.waiting:
            need = self._need(task)
            if task.memory is not None and task.memory > (most := self.workers.largest()):
                words = f"the task needs {_size(task.memory)} of memory, and the machine has {_size(most)}"
                self._give_up(task, MemoryError(words))
            elif len(self.running) < slots and self._may_start(task, need, free):
                number = next(self.numbers)
                self.running[number] = _Attempt(task, tries)
                self.workers.start(number, task, need)
                free = None if free is None else free - (need or 0)
            else:
                left.append((task, tries))
        self.waiting = left

    def _need(self, task: Task) -> int | None:
        return max(task.memory or 0, self.peaks.get(task.resolved_kind, 0)) or None

    def _may_start(self, task: Task, need: int | None, free: int | None) -> bool:
        if not self.running:
            return True
        if need is None:
            return all(attempt.task.resolved_kind != task.resolved_kind for attempt in self.running.values())
        return free is None or need <= free

    def _free(self) -> int | None:
        """Return the memory in bytes that new tasks may take, or ``None`` if the workers limit their memory themselves.

        The result is the free memory minus the memory that the running tasks will probably still take.
        """
        free = self.workers.free()
        if free is None:
            return None
        return free - sum(max(0, (self._need(run.task) or 0) - run.peak) for run in self.running.values())

    def handle(self, event: Event) -> Iterator[tuple[Task, Any]]:
        """Handle one message of a worker. If the worker's task is done, yield the task with its result."""
        attempt = self.running.get(event.attempt)
        if attempt is None:  # the attempt was stopped
            return
        now = time.monotonic()
        if attempt.began is None and event.kind not in ("failed", "lost"):  # a cluster may lose the first messages
            attempt.began = attempt.heard = now
            self.watch.began(attempt.task)
        if event.kind == "beat":
            settled = attempt.began is not None and now - attempt.began > SETTLED
            self._update_peak(attempt, event.values[0], settled=settled)
        elif event.kind == "step":
            step, total, loss, peak = event.values
            attempt.heard = now
            self._update_peak(attempt, peak, settled=True)
            self.watch.step(attempt.task, step, total, loss)
        elif event.kind == "lost":
            self._restart(event.attempt, WorkerLost(*event.values))
        elif event.kind == "failed":
            self._handle_failure(event)
        elif event.kind == "done":
            yield from self._handle_result(event)

    def _handle_failure(self, event: Event) -> None:
        problem, transient = event.values
        if transient or self.ends is not None:
            self._restart(event.attempt, problem)
        else:
            self._give_up(self.running.pop(event.attempt).task, problem)

    def _handle_result(self, event: Event) -> Iterator[tuple[Task, Any]]:
        result, peak = event.values
        attempt = self.running.pop(event.attempt)
        self._update_peak(attempt, peak, settled=True)
        try:
            value = pickle.loads(result)
        except Exception as problem:
            self._give_up(attempt.task, TypeError(f"the result cannot be read by the driver: {problem}"))
            return
        self.watch.done(attempt.task)
        yield attempt.task, value

    def _update_peak(self, attempt: _Attempt, peak: int, *, settled: bool) -> None:
        attempt.peak = max(attempt.peak, peak)
        if settled:
            kind = attempt.task.resolved_kind
            self.peaks[kind] = max(self.peaks.get(kind, 0), attempt.peak)

    def stop_hung(self) -> None:
        """Kill each task that has not reported for longer than its limit, and restart it if it has tries left."""
        now = time.monotonic()
        for number, attempt in list(self.running.items()):
            limit = attempt.task.limit or self.patience
            if attempt.heard is not None and now - attempt.heard > limit:
                self.workers.stop(number)
                hint = "" if attempt.task.limit else f". {PATIENCE} sets another limit"
                self._restart(number, WorkerLost(f"the task reported nothing for {limit:g} seconds{hint}"), most=HUNG)

    def _restart(self, number: int, problem: Exception, most: int | None = None) -> None:
        attempt = self.running.pop(number)
        if self.ends is not None:
            return
        if attempt.tries >= min(attempt.task.tries, most or attempt.task.tries):
            problem.args = (f"{problem} ({attempt.tries} times)",) if attempt.tries > 1 else problem.args
            self._give_up(attempt.task, problem)
        else:
            self.watch.again(attempt.task, in_one_line(problem))
            self.waiting.append((attempt.task, attempt.tries + 1))

    def _give_up(self, task: Task, problem: Exception) -> None:
        self.failures[task.name] = problem
        self.watch.failed(task, in_one_line(problem))


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
