"""Tasks, listeners for the progress of tasks, and the function that executes a task in a worker."""

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
from leakgauge.core.exits import no_exit
from leakgauge.runtime import memory

#: The seconds between two progress reports of a worker, if reports are cheap.
PACE = 0.2
#: The seconds between two messages of a worker about its peak memory.
BEAT = 1.0


@dataclass(frozen=True)
class Task:
    """A call of a function, which can run in a worker process or on another machine.

    The function is called with ``arguments`` and with a keyword argument ``report``. The function shows its progress by
    calling ``report(step, total, loss)``. A task is restarted if it hangs, if its worker dies or if it runs out of
    memory.

    Args:
        name: A name that no other task has.
        function: A function that is defined at the top level of a module, so that workers can import the function.
        arguments: The keyword arguments of the function.
        kind: A name that is the same for all tasks that need about the same memory and time. By default, it is the name
            of the function.
        memory: The peak memory of the task in bytes, if it is known. A larger measured peak replaces this value.
        limit: The number of seconds without a report after which the task counts as hung. By default, the environment
            variable ``LEAKGAUGE_PATIENCE`` sets it (:mod:`leakgauge.runtime.engines`).
        tries: The number of starts after which the task is given up.
    """

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    memory: int | None = None
    limit: float | None = None
    tries: int = 10

    @property
    def resolved_kind(self) -> str:
        """The kind of the task, or the full name of the function if no kind is given."""
        return self.kind or f"{self.function.__module__}.{self.function.__qualname__}"


class Watch:
    """A listener whose methods are called when tasks start, progress and end. This base class does nothing."""

    def note(self, sentence: str) -> None:
        """Receive a sentence for people, such as the expected time of all tasks."""

    def planned(self, tasks: Sequence[Task]) -> None:
        """Receive all tasks, before the first of them starts."""

    def began(self, task: Task) -> None:
        """Receive a task that has started."""

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """Receive the progress of a running task."""

    def again(self, task: Task, why: str) -> None:
        """Receive a task that ended without a result and will be restarted, with the reason."""

    def done(self, task: Task) -> None:
        """Receive a task that has finished with a result."""

    def failed(self, task: Task, why: str) -> None:
        """Receive a task that failed and will not be restarted, with the reason."""


class WorkerLost(RuntimeError):
    """The error for a task whose worker died or hung each time that the task was started."""


def execute(
    task: Task,
    common: Mapping[str, Any],
    send: Callable[..., None],
    *,
    pace: float = PACE,
    ends: Callable[[], bool] = lambda: False,
) -> tuple[Any, ...]:
    """Execute a task in a worker, and return the last message for the driver, the process that sent the task.

    During the task, the worker calls ``send("step", step, total, loss, peak)`` and ``send("beat", peak)``. ``peak`` is
    the largest memory in bytes that the worker has held since the task began.

    Args:
        task: The task to execute.
        common: The keyword arguments that are passed to every task.
        send: The function that sends a message to the driver. It is called from two threads.
        pace: The smallest number of seconds between two ``step`` messages.
        ends: A function that returns whether the task must end. Its next report then raises ``KeyboardInterrupt``.

    Returns:
        ``("done", pickled result, peak)`` or ``("failed", error, whether a restart may help)``.
    """
    memory.reset_peak()
    ended = threading.Event()
    last = 0.0

    def report(step: int, total: int | None, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last > pace:
            last = time.monotonic()
            send("step", step, total, loss, memory.peak())
        if ends():
            raise KeyboardInterrupt

    def beat() -> None:
        while not ended.wait(BEAT):
            send("beat", memory.peak())

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    try:
        with no_exit():
            result = task.function(**common, **task.arguments, report=report)
        try:
            return "done", pickle.dumps(result), memory.peak()
        except Exception as problem:
            raise TypeError(f"the result cannot be sent to the driver: {problem}") from problem
    except KeyboardInterrupt:
        return "failed", WorkerLost("the task was interrupted"), False
    except Exception as problem:
        return "failed", portable(problem), is_transient(problem)
    finally:
        ended.set()
        heart.join()
        memory.give_back()


def is_transient(problem: Exception) -> bool:
    """Return whether an error may be temporary, so that a restart of the task may help.

    Errors of memory, files and connections may be temporary. Any other error would occur again, because the seed and
    the code do not change.
    """
    if isinstance(problem, LeakgaugeError):
        return False
    return isinstance(problem, MemoryError | OSError) or _out_of_memory(problem)


def _out_of_memory(problem: Exception) -> bool:
    """Return whether an error is a plain ``RuntimeError`` with which torch reports that memory ran out."""
    text = str(problem).lower()
    return isinstance(problem, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)


def portable(problem: Exception) -> Exception:
    """Return the error, or a copy that can be pickled, with the worker's traceback as a note."""
    note = f"in a worker:\n{''.join(traceback.format_exception(problem))}"
    with contextlib.suppress(Exception):
        if str(pickle.loads(pickle.dumps(problem))) == str(problem):
            problem.add_note(note)
            return problem
    if isinstance(problem, LeakgaugeError):
        copy: Exception = LeakgaugeError(str(problem))
    else:
        copy = RuntimeError(f"{type(problem).__name__}: {problem}")
    copy.add_note(note)
    return copy


def in_one_line(problem: Exception) -> str:
    """Return an error as one line of text. For errors of Leakgauge, the type is left out."""
    text = str(problem).partition("\n")[0]
    if isinstance(problem, LeakgaugeError | WorkerLost):
        return text
    return f"{type(problem).__name__}: {text or 'no message'}"
