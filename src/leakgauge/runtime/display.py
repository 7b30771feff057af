"""The display of the progress of many tasks on standard error, with a bar for each running task and one for all tasks.

If standard error is not a terminal, one line is printed for each task that ends, and now and then one for each running
task.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from leakgauge.core.errors import printable
from leakgauge.runtime import Task, Watch

#: The seconds after which the first line about a running task is printed, where there is no terminal.
FIRST_LINE = 10.0
#: The factor by which the time between two such lines grows, and the largest time.
GROWTH, SLOWEST = 1.5, 60.0


@contextmanager
def watching() -> Iterator[Watch]:
    """Yield a listener that shows the progress of tasks, with bars on a terminal and with plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    with bars(Console(stderr=True)) as progress:
        yield Bars(progress)


def bars(screen: Console) -> Progress:
    """Return a display of progress bars. Each line has a name, a bar, the progress and the remaining time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[far]}"),
        TextColumn("{task.fields[left]}", style="cyan"),
        console=screen,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # otherwise output for a file or a pipe would go to the terminal
    )


@dataclass
class _Running:
    """A running task, with its kind, its start time, and the fraction of its steps that is done."""

    kind: str
    began: float
    share: float = 0.0

    def seconds(self) -> float:
        return time.monotonic() - self.began


class Clock(Watch):
    """A listener that estimates the remaining time of all tasks.

    The remaining time of a running task is extrapolated from the steps that it has reported. All other estimates assume
    that tasks of the same kind take the same time. A task without reported steps is expected to take as long as the
    finished tasks of its kind. If no such task has finished, a waiting task is expected to take as long as the running
    tasks of its kind. Tasks without an estimate are not counted.
    """

    def __init__(self) -> None:
        self.total = self.ended = 0
        self._waiting: dict[str, str] = {}
        self._running: dict[str, _Running] = {}
        self._taken: dict[str, list[float]] = {}

    def planned(self, tasks: Sequence[Task]) -> None:
        """Add tasks that will run later."""
        self.total += len(tasks)
        self._waiting |= {task.name: task.resolved_kind for task in tasks}

    def began(self, task: Task) -> None:
        """Start to measure the time of a task."""
        self._waiting.pop(task.name, None)
        self._running[task.name] = _Running(task.resolved_kind, time.monotonic())

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """Record which fraction of its steps a task has done."""
        self._running[task.name].share = min(1.0, step / total) if total else 0.0

    def again(self, task: Task, why: str) -> None:
        """Move a task from the running tasks back to the waiting tasks, because it will be restarted."""
        self._running.pop(task.name, None)
        self._waiting[task.name] = task.resolved_kind

    def done(self, task: Task) -> None:
        """Record the time that a finished task took."""
        self.ended += 1
        run = self._running.pop(task.name)
        self._taken.setdefault(run.kind, []).append(run.seconds())

    def failed(self, task: Task, why: str) -> None:
        """Remove a failed task without recording its time."""
        self.ended += 1
        self._waiting.pop(task.name, None)
        self._running.pop(task.name, None)

    def seconds(self, task: Task) -> float:
        """Return the seconds that a running task has taken so far.

        If the task is not running, return the seconds that the last finished task of the same kind took.
        """
        if task.name in self._running:
            return self._running[task.name].seconds()
        return self._taken[task.resolved_kind][-1]

    def left_of(self, task: Task) -> float | None:
        """Return the remaining time of a running task in seconds, or ``None`` if there is no estimate."""
        return self._left(self._running[task.name])

    def left(self) -> tuple[float, bool]:
        """Return the remaining time of all tasks in seconds, and whether every task has an estimate.

        The result assumes that the number of tasks that run at a time does not change.
        """
        parts = [self._left(run) for run in self._running.values()] + list(map(self._usual, self._waiting.values()))
        known = [part for part in parts if part is not None]
        longest = max((part for part in map(self._left, self._running.values()) if part is not None), default=0.0)
        return max(longest, sum(known) / max(1, len(self._running))), len(known) == len(parts)

    def _left(self, run: _Running) -> float | None:
        if run.share > 0:
            return run.seconds() * (1 - run.share) / run.share
        taken = self._taken.get(run.kind)
        return None if taken is None else max(0.0, sum(taken) / len(taken) - run.seconds())

    def _usual(self, kind: str) -> float | None:
        taken = self._taken.get(kind) or [
            run.seconds() / run.share for run in self._running.values() if run.kind == kind and run.share > 0
        ]
        return sum(taken) / len(taken) if taken else None

    def rest(self) -> str:
        """Return the remaining time of all tasks as text, such as "about 5.0 min left".

        Return an empty text if the remaining time is unknown.
        """
        seconds, everything = self.left()
        if self.ended == self.total or (seconds == 0 and not everything):
            return ""
        return f"{'about' if everything else 'more than'} {duration(seconds)} left"


class Lines(Clock):
    """A display that prints one line for each task that ends or is restarted, and now and then for running tasks.

    The lines about running tasks become rarer, from one after ten seconds to one a minute. They are written when a task
    reports a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pause = FIRST_LINE
        self._printed: float | None = None

    def began(self, task: Task) -> None:
        """Start to measure the time of a task."""
        super().began(task)
        if self._printed is None:
            self._printed = time.monotonic()

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """Print how far the task is, unless a line was printed a moment ago."""
        super().step(task, step, total, loss)
        if self._printed is not None and time.monotonic() - self._printed >= self._pause:
            self._pause = min(SLOWEST, GROWTH * self._pause)
            so_far = f"{duration(self.seconds(task))} so far"
            self._print("running", f"{task.name}, {', '.join(filter(None, (_progress(step, total, loss), so_far)))}")

    def note(self, sentence: str) -> None:
        """Print the sentence."""
        print(printable(sentence, longest=2000), file=sys.stderr, flush=True)

    def done(self, task: Task) -> None:
        """Print the name of the task and the time that it took."""
        super().done(task)
        self._print("done", f"{task.name} ({duration(self.seconds(task))})")

    def again(self, task: Task, why: str) -> None:
        """Print the name of the task and the reason for its restart."""
        super().again(task, why)
        self._print("restarted", f"{task.name}: {why}")

    def failed(self, task: Task, why: str) -> None:
        """Print the name of the task and its error."""
        super().failed(task, why)
        self._print("failed", f"{task.name}: {why}")

    def _print(self, status: str, text: str) -> None:
        self._printed, rest = time.monotonic(), self.rest()
        line = f"[{self.ended}/{self.total}] {status}: {printable(text)}"
        print(f"{line}; {rest}" if rest else line, file=sys.stderr, flush=True)


class Bars(Clock):
    """A display with one bar for each running task and one bar for all tasks. Finished tasks are listed above.

    Args:
        bars: The display from the function :func:`bars`.
    """

    def __init__(self, bars: Progress) -> None:
        super().__init__()
        self._bars = bars
        self._whole = bars.add_task("[bold]all[/bold]", total=None, far="", left="")
        self._of: dict[str, TaskID] = {}

    def note(self, sentence: str) -> None:
        """Print the sentence above the bars."""
        self._bars.console.print(escape(printable(sentence, longest=2000)), highlight=False)

    def planned(self, tasks: Sequence[Task]) -> None:
        """Add tasks that will run later, and show the new number of tasks."""
        super().planned(tasks)
        self._show()

    def began(self, task: Task) -> None:
        """Show a new bar for a task."""
        super().began(task)
        self._remove(task)
        self._of[task.name] = self._bars.add_task(escape(printable(task.name)), total=None, far="", left="")

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """Update the bar of a task."""
        super().step(task, step, total, loss)
        seconds = self.left_of(task)
        left = "" if seconds is None else f"{duration(seconds)} left"
        far = _progress(step, total, loss)
        self._bars.update(self._of[task.name], completed=step, total=total, far=far, left=left)
        self._show()

    def again(self, task: Task, why: str) -> None:
        """Remove the bar of a task, and print the reason for its restart."""
        super().again(task, why)
        self._end(task, "[yellow]restarted[/yellow]", f"{task.name}: {why}")

    def done(self, task: Task) -> None:
        """Remove the bar of a task, and print the time that it took."""
        super().done(task)
        self._end(task, "[green]done[/green]", f"{task.name} ({duration(self.seconds(task))})")

    def failed(self, task: Task, why: str) -> None:
        """Remove the bar of a task, and print its error."""
        super().failed(task, why)
        self._end(task, "[red]failed[/red]", f"{task.name}: {why}")

    def _end(self, task: Task, status: str, text: str) -> None:
        self._remove(task)
        self._bars.console.print(f"{status} {escape(printable(text))}", highlight=False)
        self._show()

    def _remove(self, task: Task) -> None:
        if task.name in self._of:
            self._bars.remove_task(self._of.pop(task.name))

    def _show(self) -> None:
        far = f"{self.ended} of {self.total} tasks"
        self._bars.update(self._whole, completed=self.ended, total=self.total, far=far, left=self.rest())


def _progress(step: int, total: int | None, loss: float) -> str:
    """Return the step and the loss of a task as text. The text is empty if the task has reported neither."""
    far = f"step {step}" if total is None else f"step {step} of {total}"
    parts = [far if step or total is not None else "", f"loss {loss:.3g}" if math.isfinite(loss) else ""]
    return ", ".join(filter(None, parts))


def duration(seconds: float) -> str:
    """Return a duration as a short text.

    >>> duration(9000)
    '2.5 h'
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.95 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
