"""One live display of a sweep on standard error: a line for every running task, and one for the whole.

Where standard error is no terminal, quiet lines say what was finished.
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


@contextmanager
def watching() -> Iterator[Watch]:
    """Show a sweep, live on a terminal and in lines elsewhere."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    with bars(Console(stderr=True)) as shown:
        yield Bars(shown)


def bars(screen: Console) -> Progress:
    """Lines with a bar, how far a task is, and how long it takes yet."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[far]}"),
        TextColumn("{task.fields[left]}", style="cyan"),
        console=screen,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # else what goes to a file or a pipe would go to the terminal
    )


@dataclass
class _Running:
    kind: str
    began: float
    share: float = 0.0

    def seconds(self) -> float:
        return time.monotonic() - self.began


class Clock(Watch):
    """Keeps count of a sweep, and of how long its rest will take, as far as that can be told.

    A task takes as long as those of its kind took on average or, before any has ended, as long as the running ones will
    by the share that they have done. What is of a kind that nothing is known of is not counted.
    """

    def __init__(self) -> None:
        self.total = self.ended = 0
        self._waiting: dict[str, str] = {}
        self._running: dict[str, _Running] = {}
        self._taken: dict[str, list[float]] = {}

    def planned(self, tasks: Sequence[Task]) -> None:
        """These come on top of those before."""
        self.total += len(tasks)
        self._waiting |= {task.name: task.like for task in tasks}

    def began(self, task: Task) -> None:
        """Its time runs."""
        self._waiting.pop(task.name, None)
        self._running[task.name] = _Running(task.like, time.monotonic())

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """It has done a share."""
        self._running[task.name].share = min(1.0, step / total) if total else 0.0

    def again(self, task: Task, why: str) -> None:
        """What it has done is lost."""
        self._running.pop(task.name, None)
        self._waiting[task.name] = task.like

    def done(self, task: Task) -> None:
        """Its kind takes so long."""
        self.ended += 1
        one = self._running.pop(task.name)
        self._taken.setdefault(one.kind, []).append(one.seconds())

    def failed(self, task: Task, why: str) -> None:
        """Nothing is known from it."""
        self.ended += 1
        self._waiting.pop(task.name, None)
        self._running.pop(task.name, None)

    def seconds(self, task: Task) -> float:
        """How long a running task has taken, or the last one of its kind took."""
        if task.name in self._running:
            return self._running[task.name].seconds()
        return self._taken[task.like][-1]

    def left_of(self, task: Task) -> float | None:
        """Seconds that a running task has left."""
        return self._left(self._running[task.name])

    def left(self) -> tuple[float, bool]:
        """Seconds that the rest takes, with as many at a time as now, and whether everything is counted in them."""
        parts = [self._left(one) for one in self._running.values()] + list(map(self._usual, self._waiting.values()))
        known = [part for part in parts if part is not None]
        longest = max((part for part in map(self._left, self._running.values()) if part is not None), default=0.0)
        return max(longest, sum(known) / max(1, len(self._running))), len(known) == len(parts)

    def _left(self, one: _Running) -> float | None:
        if one.share > 0:
            return one.seconds() * (1 - one.share) / one.share
        taken = self._taken.get(one.kind)
        return None if taken is None else max(0.0, sum(taken) / len(taken) - one.seconds())

    def _usual(self, kind: str) -> float | None:
        taken = self._taken.get(kind) or [
            one.seconds() / one.share for one in self._running.values() if one.kind == kind and one.share > 0
        ]
        return sum(taken) / len(taken) if taken else None

    def rest(self) -> str:
        """What :meth:`left` says, in words."""
        seconds, everything = self.left()
        if self.ended == self.total or (seconds == 0 and not everything):
            return ""
        return f"{'about' if everything else 'more than'} {duration(seconds)} left"


class Lines(Clock):
    """A line for every task that ends."""

    def done(self, task: Task) -> None:
        """Say so."""
        super().done(task)
        self._say("done", f"{task.name} ({duration(self.seconds(task))})")

    def again(self, task: Task, why: str) -> None:
        """Say so."""
        super().again(task, why)
        self._say("again", f"{task.name}: {why}")

    def failed(self, task: Task, why: str) -> None:
        """Say so."""
        super().failed(task, why)
        self._say("failed", f"{task.name}: {why}")

    def _say(self, what: str, line: str) -> None:
        rest = self.rest()
        words = f"[{self.ended}/{self.total}] {what}: {printable(line)}"
        print(f"{words}; {rest}" if rest else words, file=sys.stderr, flush=True)


class Bars(Clock):
    """A bar for every running task, and one for the whole; what ends says so above them."""

    def __init__(self, bars: Progress) -> None:
        super().__init__()
        self._bars = bars
        self._whole = bars.add_task("[bold]all[/bold]", total=None, far="", left="")
        self._of: dict[str, TaskID] = {}

    def planned(self, tasks: Sequence[Task]) -> None:
        """Show how many there are."""
        super().planned(tasks)
        self._show()

    def began(self, task: Task) -> None:
        """Give it a bar."""
        super().began(task)
        self._remove(task)
        self._of[task.name] = self._bars.add_task(escape(printable(task.name)), total=None, far="", left="")

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """Move its bar."""
        super().step(task, step, total, loss)
        far = f"step {step}" + ("" if total is None else f" of {total}")
        far += f", loss {loss:.3g}" if math.isfinite(loss) else ""
        left = self.left_of(task)
        words = "" if left is None else f"{duration(left)} left"
        self._bars.update(self._of[task.name], completed=step, total=total, far=far, left=words)
        self._show()

    def again(self, task: Task, why: str) -> None:
        """Take its bar away."""
        super().again(task, why)
        self._end(task, "[yellow]again[/yellow]", f"{task.name}: {why}")

    def done(self, task: Task) -> None:
        """Take its bar away."""
        super().done(task)
        self._end(task, "[green]done[/green]", f"{task.name} ({duration(self.seconds(task))})")

    def failed(self, task: Task, why: str) -> None:
        """Take its bar away."""
        super().failed(task, why)
        self._end(task, "[red]failed[/red]", f"{task.name}: {why}")

    def _end(self, task: Task, what: str, line: str) -> None:
        self._remove(task)
        self._bars.console.print(f"{what} {escape(printable(line))}", highlight=False)
        self._show()

    def _remove(self, task: Task) -> None:
        if task.name in self._of:
            self._bars.remove_task(self._of.pop(task.name))

    def _show(self) -> None:
        far = f"{self.ended} of {self.total} tasks"
        self._bars.update(self._whole, completed=self.ended, total=self.total, far=far, left=self.rest())


def duration(seconds: float) -> str:
    """A length of time, as coarse as one wants it."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.95 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
