"""One progress bar for long work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None, float], None]


def silent(step: int, total: int | None, loss: float) -> None:
    """Report to nobody."""


@contextmanager
def progress_bar(description: str, progress: bool | Report | None = None) -> Iterator[Report]:
    """Yield ``report(step, total, loss)``.

    ``progress`` is a function to report to, or says whether to show a bar on standard error; ``None`` shows
    one when that is a terminal.
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
        TextColumn("{task.description}", markup=False),  # it may name a client
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3g}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # A bar in a file cannot move: its last state stays.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(description, total=None, loss=float("nan"))
        yield lambda step, total, loss: bar.update(task, completed=step, total=total, loss=loss)
