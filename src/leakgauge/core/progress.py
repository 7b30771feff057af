"""Progress bars and time limits for attacks and other long computations."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None, float], None]


def silent(step: int, total: int | None, loss: float) -> None:
    """Do nothing. This function is used in place of the progress bar if no progress is shown."""


class OutOfTime(KeyboardInterrupt):
    """The interrupt that ends an attack after its time limit.

    Attacks handle this interrupt like Ctrl-C, and return their best result so far.
    """


class TimeLimit:
    """A progress function that interrupts its caller after a number of seconds.

    The time begins with the creation of this object. Every report after the limit raises :class:`OutOfTime`, so that an
    attack of several parts ends all of its parts. The report of a last step raises nothing, because that part is done.
    The attribute ``passed`` is true after the limit has ended something. The attribute ``interrupted`` is true after
    ``report`` itself has raised ``KeyboardInterrupt``.

    Args:
        report: The progress function that receives the reports.
        seconds: The time limit in seconds. ``None`` means no limit.
        clock: A function that returns the time in seconds. By default, a clock that is never set back.
    """

    def __init__(self, report: Report, seconds: float | None, clock: Callable[[], float] | None = None) -> None:
        self.report, self.seconds, self.clock = report, seconds, clock or time.monotonic
        self.passed = self.interrupted = False
        self._began = self.clock()

    def __call__(self, step: int, total: int | None, loss: float) -> None:
        """Pass on a report, and raise :class:`OutOfTime` if the time limit has passed."""
        try:
            self.report(step, total, loss)
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        done = total is not None and step >= total
        if not done and self.seconds is not None and self.clock() - self._began >= self.seconds:
            self.passed = True
            raise OutOfTime


@contextmanager
def progress_bar(description: str, progress: bool | Report | None = None) -> Iterator[Report]:
    """Yield a function ``report(step, total, loss)`` that an attack calls to show its progress.

    Args:
        description: The text beside the bar.
        progress: ``True`` shows a bar on standard error, and ``False`` shows nothing. By default, a bar is shown if
            standard error is a terminal. A function is yielded as it is, and no bar is shown.
    """
    if callable(progress):
        yield progress
        return
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),  # the description may hold a client's name, which is no markup
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3g}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # A file gets only the last state of the bar.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(description, total=None, loss=float("nan"))
        yield lambda step, total, loss: bar.update(task, completed=step, total=total, loss=loss)
