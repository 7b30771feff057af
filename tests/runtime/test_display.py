"""The display of a sweep: bars on a terminal, lines elsewhere, and the time that is left."""

import io
import itertools
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from leakgauge.runtime import Task, display, run_tasks
from leakgauge.runtime.display import Clock, Lines, duration, watching
from tests.runtime.work import PYTHONPATH, TASKS, fails, not_the_first_time


class Time:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(display.time, "monotonic", lambda: self.now)


@pytest.fixture
def time(monkeypatch):
    return Time(monkeypatch)


def task(name, kind="k"):
    return Task(name, len, kind=kind)


A, B, C, D = (task(name) for name in "abcd")


def test_the_time_left_is_estimated_by_kind(time):
    clock = Clock()
    dear = task("dear", "other")
    clock.planned([A, B, C, dear])
    assert clock.rest() == ""  # nothing is known
    clock.began(A)
    time.now = 10
    clock.step(A, 1, 4, 0.5)
    assert clock.left_of(A) == 30
    assert clock.left() == (30 + 40 + 40, False)  # nothing is known about the dear one
    assert clock.rest() == "more than 110 s left"
    clock.done(A)
    clock.began(dear)
    time.now = 20
    clock.step(dear, 1, 100, 0.5)
    assert clock.left() == (990 + 10 + 10, True)
    assert clock.rest() == "about 16.8 min left"
    clock.began(B)  # two at a time, and at least as long as the longest
    assert clock.left() == (990, True)


def test_a_lost_task_counts_as_waiting(time):
    clock = Clock()
    clock.planned([A, B])
    clock.began(A)
    time.now = 6
    clock.done(A)
    clock.began(B)
    clock.again(B, "its worker died")
    assert clock.left() == (6, True)
    clock.failed(B, "its worker died")
    assert (clock.ended, clock.total, clock.rest()) == (2, 2, "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.3, "0.3 s"), (42.4, "42 s"), (90, "90 s"), (150, "2.5 min"), (9000, "2.5 h"), (1e6, "11.6 days")],
)
def test_lengths_of_time(seconds, words):
    assert duration(seconds) == words


def test_without_a_terminal_there_are_lines(capsys, tmp_path):
    unlucky = Task("unlucky", not_the_first_time, {"path": str(tmp_path / "x"), "how": "disk"})
    with watching() as watch, pytest.raises(Exception, match="1 of 4 tasks failed"):
        list(run_tasks([*TASKS[:2], unlucky, Task("broken", fails)], watch=watch))
    out, lines = capsys.readouterr()
    assert out == ""
    assert [line.split(" (")[0].split(";")[0] for line in lines.splitlines()] == [
        "[1/4] done: seed 0",
        "[2/4] done: seed 1",
        "[2/4] restarted: unlucky: OSError: the disk is away",
        "[3/4] done: unlucky",
        "[4/4] failed: broken: ValueError: task went wrong",
    ]


def test_lines_show_the_time_left(time, capsys):
    lines = Lines()
    lines.planned([A, B])
    lines.began(A)
    time.now = 5
    lines.done(A)
    assert capsys.readouterr().err == "[1/2] done: a (5.0 s); about 5.0 s left\n"


def test_lines_show_how_far_long_tasks_are_and_become_rarer(time, capsys):
    lines = Lines()
    lines.planned([A])
    lines.began(A)
    moments = []
    for second in range(1, 601):
        time.now = second
        lines.step(A, second, 1200, 0.5)
        if capsys.readouterr().err:
            moments.append(second)
    assert moments[:3] == [10, 25, 48]
    assert {later - earlier for earlier, later in itertools.pairwise(moments[4:])} == {60}
    time.now = 700
    lines.step(A, 700, 1200, 0.5)
    assert (
        capsys.readouterr().err == "[0/1] running: a, step 700 of 1200, loss 0.5, 11.7 min so far; about 8.3 min left\n"
    )
    time.now = 800
    lines.step(A, 0, None, float("nan"))
    assert capsys.readouterr().err == "[0/1] running: a, 13.3 min so far\n"


def test_bars_show_each_running_task_and_the_whole(time):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    bars = display.bars(screen)
    watch = display.Bars(bars)
    watch.planned([A, task("[b]"), C])
    watch.began(A)
    time.now = 10
    watch.step(A, 25, 100, 0.125)
    watch.began(task("[b]"))

    def shown():
        with screen.capture() as text:
            screen.print(bars.get_renderable())
        return text.get()

    for words in ("a ", "step 25 of 100, loss 0.125", "30 s left", "[b]", "0 of 3 tasks", "about"):
        assert words in shown()
    watch.done(A)
    assert "step 25" not in shown()
    assert "1 of 3 tasks" in shown()
    watch.again(task("[b]"), "its worker died")
    watch.failed(C, "went wrong")
    assert "[b]" not in shown()
    above = screen.file.getvalue()
    for words in ("done", "a (10 s)", "restarted", "[b]: its worker died", "failed", "c: went wrong"):
        assert words in above


SCRIPT = """
from leakgauge.runtime.display import watching
from leakgauge.runtime import run_tasks
from tests.runtime.work import TASKS
with watching() as watch:
    for task, _ in run_tasks(TASKS[:1], watch=watch):
        print("result of", task.name, flush=True)
"""


def test_on_a_terminal_output_for_a_file_still_goes_there(tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm"}
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", SCRIPT], stdout=out, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert (tmp_path / "out").read_text() == "result of seed 0\n"
    assert "seed 0" in shown
    assert "1 of 1 tasks" in shown
    assert "result of" not in shown
