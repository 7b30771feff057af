"""What is to be done, who is told how it goes, and how one task is carried out, wherever that is."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakgauge.core.errors import LeakgaugeError
from leakgauge.runtime import memory

#: Seconds between two reports of a worker, unless reporting is dear.
PACE = 0.2
#: Seconds between two words of a worker on the memory that its task has taken so far.
BEAT = 1.0


@dataclass(frozen=True)
class Task:
    """A function of the module level with its arguments, and a name that no other task of the sweep has.

    The function gets a keyword ``report(step, total, loss)`` beside ``arguments``. Tasks of the same ``kind`` (by
    default: with the same function) need about the same memory. ``memory`` is what a task needs at its peak, in bytes,
    where that was measured before; it is measured anyhow. A task that reports nothing for ``limit`` seconds counts as
    hung. One that hangs, or whose worker dies or runs out of memory, is begun anew, at most ``tries`` times in all.
    """

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    memory: int | None = None
    limit: float | None = None
    tries: int = 10

    @property
    def like(self) -> str:
        """The kind, in any case."""
        return self.kind or f"{self.function.__module__}.{self.function.__qualname__}"


class Watch:
    """Is told, in the driver, what becomes of tasks. This one does not mind."""

    def planned(self, tasks: Sequence[Task]) -> None:
        """These are to be done."""

    def began(self, task: Task) -> None:
        """A worker has begun with it."""

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """It has got so far."""

    def again(self, task: Task, why: str) -> None:
        """It did not get to its end, and will be begun anew."""

    def done(self, task: Task) -> None:
        """Its result is there."""

    def failed(self, task: Task, why: str) -> None:
        """It will not be tried again."""


class WorkerLost(RuntimeError):
    """A worker died or hung, every time that the task was tried."""


def carry_out(
    task: Task, common: Mapping[str, Any], send: Callable[..., None], *, pace: float = PACE
) -> tuple[Any, ...]:
    """Do a task in a worker: ``("done", the pickled result, peak)`` or ``("failed", the error, whether it may pass)``.

    On the way, ``send("step", step, total, loss, peak)``, every ``pace`` seconds at most, and ``send("beat", peak)``,
    from two threads. ``peak`` is the memory that the worker has taken since the task began, in bytes.
    """
    memory.forget_peak()
    ended = threading.Event()
    last = 0.0

    def report(step: int, total: int | None, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last > pace:
            last = time.monotonic()
            send("step", step, total, loss, memory.peak())

    def beat() -> None:
        while not ended.wait(BEAT):
            send("beat", memory.peak())

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    try:
        result = task.function(**common, **task.arguments, report=report)
        try:
            return "done", pickle.dumps(result), memory.peak()
        except Exception as problem:
            raise TypeError(f"the result cannot be sent to the driver: {problem}") from problem
    except Exception as problem:
        return "failed", portable(problem), may_pass(problem)
    finally:
        ended.set()
        heart.join()
        memory.give_back()


def may_pass(problem: Exception) -> bool:
    """Whether another try may go better: memory, files and connections change; the same seed and code do not."""
    if isinstance(problem, LeakgaugeError):
        return False
    return isinstance(problem, MemoryError | OSError) or _out_of_memory(problem)


def _out_of_memory(problem: Exception) -> bool:
    """Torch says it with a plain ``RuntimeError``."""
    words = str(problem).lower()
    return isinstance(problem, RuntimeError) and ("can't allocate memory" in words or "out of memory" in words)


def portable(problem: Exception) -> Exception:
    """An exception that survives the way to the driver, with where it was raised as a note."""
    where = "".join(traceback.format_exception(problem))
    with contextlib.suppress(Exception):
        if str(pickle.loads(pickle.dumps(problem))) == str(problem):
            problem.add_note(f"in a worker:\n{where}")
            return problem
    if isinstance(problem, LeakgaugeError):
        copy: Exception = LeakgaugeError(str(problem))
    else:
        copy = RuntimeError(f"{type(problem).__name__}: {problem}")
    copy.add_note(f"in a worker:\n{where}")
    return copy


def sentence(problem: Exception) -> str:
    """An error in one line: what Leakgauge raises on purpose says it by itself."""
    text = str(problem).partition("\n")[0]
    if isinstance(problem, LeakgaugeError | WorkerLost):
        return text
    return f"{type(problem).__name__}: {text or 'no message'}"
