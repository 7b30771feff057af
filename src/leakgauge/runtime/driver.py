"""The driver's loop, whatever the workers are: what starts, what is tried again, what has failed.

**Memory.** No more tasks start than fit. What a task needs is what it states or, if that is more, the largest peak
that was seen of its kind: workers measure it and say it with every report, once a second, and at the end. Of a kind
that nothing is known of, one task starts; the others wait until it has reported a step, ended, or worked for ten
seconds. What running tasks have yet to take up to their need is set aside. One task always runs.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from leakgauge.runtime.tasks import PACE, Task, Watch, WorkerLost, sentence

#: Seconds of work after which the peak so far counts as known.
SETTLED = 10.0


class Event(NamedTuple):
    """What was heard of an attempt: ``begun``, ``step``, ``beat``, ``done`` or ``failed``, or that it was ``lost``."""

    attempt: int
    what: str
    values: tuple[Any, ...] = ()


class Workers(Protocol):
    """Where attempts run."""

    def slots(self) -> int:
        """How many may run at a time."""

    def start(self, attempt: int, task: Task, need: int | None) -> None:
        """Begin with a task, which needs so much memory."""

    def events(self, timeout: float) -> list[Event]:
        """What has happened, after ``timeout`` seconds at the latest."""

    def stop(self, attempt: int) -> None:
        """End an attempt by force; nothing more is heard of it."""

    def free(self) -> int | None:
        """Memory that can be taken now; ``None`` if the workers look after that themselves."""

    def largest(self) -> int:
        """The most memory that one task can have."""


@dataclass
class _Attempt:
    task: Task
    tries: int  # with this one
    began: float | None = None
    heard: float | None = None
    peak: int = 0


def drive(
    workers: Workers, tasks: Sequence[Task], watch: Watch, failures: dict[str, Exception]
) -> Iterator[tuple[Task, Any]]:
    """Yield each task with its result as they finish; add what failed to ``failures``, by the task's name."""
    loop = _Loop(workers, tasks, watch, failures)
    while loop.waiting or loop.running:
        loop.start_what_fits()
        for event in workers.events(PACE):
            yield from loop.take(event)
        loop.end_the_hung()


class _Loop:
    def __init__(self, workers: Workers, tasks: Sequence[Task], watch: Watch, failures: dict[str, Exception]) -> None:
        self.workers, self.watch, self.failures = workers, watch, failures
        self.waiting = [(task, 1) for task in tasks]
        self.running: dict[int, _Attempt] = {}
        self.seen: dict[str, int] = {}  # the largest peak of each kind
        self.numbers = itertools.count()

    def start_what_fits(self) -> None:
        """Start the first of the waiting tasks, as many as there are workers and memory for."""
        slots = self.workers.slots()
        if len(self.running) >= slots:
            return
        free, left = self._free(), []
        for task, tries in self.waiting:
            need = self._need(task)
            if task.memory is not None and task.memory > (most := self.workers.largest()):
                self._give_up(task, MemoryError(f"it needs {_size(task.memory)}, and there is only {_size(most)}"))
            elif len(self.running) < slots and self._may_start(task, need, free):
                number = next(self.numbers)
                self.running[number] = _Attempt(task, tries)
                self.workers.start(number, task, need)
                free = None if free is None else free - (need or 0)
            else:
                left.append((task, tries))
        self.waiting = left

    def _need(self, task: Task) -> int | None:
        return max(task.memory or 0, self.seen.get(task.like, 0)) or None

    def _may_start(self, task: Task, need: int | None, free: int | None) -> bool:
        if not self.running:
            return True
        if need is None:
            return all(one.task.like != task.like for one in self.running.values())
        return free is None or need <= free

    def _free(self) -> int | None:
        """What is left when the running tasks have taken what they need."""
        free = self.workers.free()
        if free is None:
            return None
        return free - sum(max(0, (self._need(one.task) or 0) - one.peak) for one in self.running.values())

    def take(self, event: Event) -> Iterator[tuple[Task, Any]]:
        """Note what a worker said; yield the task if that was its result."""
        one = self.running.get(event.attempt)
        if one is None:  # of an attempt that was ended
            return
        now = time.monotonic()
        if one.began is None and event.what not in ("failed", "lost"):  # on a cluster the first words may be lost
            one.began = one.heard = now
            self.watch.began(one.task)
        if event.what == "beat":
            self._saw(one, event.values[0], settled=one.began is not None and now - one.began > SETTLED)
        elif event.what == "step":
            step, total, loss, peak = event.values
            one.heard = now
            self._saw(one, peak, settled=True)
            self.watch.step(one.task, step, total, loss)
        elif event.what == "lost":
            self._again(event.attempt, WorkerLost(*event.values))
        elif event.what == "failed":
            problem, may_pass = event.values
            if may_pass:
                self._again(event.attempt, problem)
            else:
                self._give_up(self.running.pop(event.attempt).task, problem)
        elif event.what == "done":
            result, peak = event.values
            self._saw(one, peak, settled=True)
            del self.running[event.attempt]
            try:
                value = pickle.loads(result)
            except Exception as problem:
                self._give_up(one.task, TypeError(f"the result cannot be read by the driver: {problem}"))
                return
            self.watch.done(one.task)
            yield one.task, value

    def _saw(self, one: _Attempt, peak: int, *, settled: bool) -> None:
        one.peak = max(one.peak, peak)
        if settled:
            self.seen[one.task.like] = max(self.seen.get(one.task.like, 0), one.peak)

    def end_the_hung(self) -> None:
        """End attempts that have not reported for as long as their task allows."""
        now = time.monotonic()
        for number, one in list(self.running.items()):
            limit = one.task.limit
            if limit is not None and one.heard is not None and now - one.heard > limit:
                self.workers.stop(number)
                self._again(number, WorkerLost(f"it reported nothing for {limit:g} seconds"))

    def _again(self, number: int, problem: Exception) -> None:
        one = self.running.pop(number)
        if one.tries >= one.task.tries:
            problem.args = (f"{problem} ({one.tries} times)",) if one.tries > 1 else problem.args
            self._give_up(one.task, problem)
        else:
            self.watch.again(one.task, sentence(problem))
            self.waiting.append((one.task, one.tries + 1))

    def _give_up(self, task: Task, problem: Exception) -> None:
        self.failures[task.name] = problem
        self.watch.failed(task, sentence(problem))


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
