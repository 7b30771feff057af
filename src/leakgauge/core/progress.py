"""A progress bar for attacks and other long computations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None, float], None]


def silent(step: int, total: int | None, loss: float) -> None:
    """Do nothing. This function is used in place of the progress bar if no progress is shown."""


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
