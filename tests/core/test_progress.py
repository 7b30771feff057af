"""Progress: reported to a function, shown on standard error, or ignored."""

import io
import sys

import pytest

from leakgauge.core.progress import OutOfTime, TimeLimit, progress_bar, silent


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_function_is_reported_to_as_it_is():
    lines = []
    with progress_bar("work", lambda *line: lines.append(line)) as report:
        report(1, 10, 0.5)
        report(2, None, 0.25)
    assert lines == [(1, 10, 0.5), (2, None, 0.25)]


@pytest.mark.parametrize("progress", [False, None])
def test_nothing_is_shown_when_refused_or_without_a_terminal(progress, capsys):
    with progress_bar("work", progress) as report:
        report(1, 10, 0.5)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_standard_error_tells_what_how_far_and_the_loss(capsys):
    with progress_bar("attacking alice", True) as report:
        report(3, 10, 0.125)
    shown = capsys.readouterr()
    assert shown.out == ""
    for part in ("attacking alice", "3/10", "0.125"):
        assert part in shown.err


def test_a_terminal_gets_a_bar_by_itself(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("attacking bob") as report:
        report(1, 2, 1.0)
    assert "attacking bob" in terminal.getvalue()


def test_an_unknown_total_is_no_obstacle(capsys):
    with progress_bar("work", True) as report:
        report(1, None, float("nan"))
    assert "work" in capsys.readouterr().err


@pytest.mark.parametrize("progress", [True, False])
def test_an_exception_inside_passes_through(progress, capsys):
    with pytest.raises(KeyboardInterrupt), progress_bar("work", progress):
        raise KeyboardInterrupt


def test_reports_after_the_time_limit_interrupt_and_the_last_step_does_not():
    times, lines = iter([100.0, 104.0, 105.0, 106.0, 107.0]), []
    limit = TimeLimit(lambda *line: lines.append(line), 5.0, lambda: next(times))
    limit(1, 10, 0.5)
    assert not limit.passed
    with pytest.raises(OutOfTime):
        limit(2, 10, 0.4)
    with pytest.raises(KeyboardInterrupt):
        limit(3, None, 0.3)
    limit(10, 10, 0.2)
    assert limit.passed
    assert [step for step, _, _ in lines] == [1, 2, 3, 10]


def test_no_limit_never_interrupts():
    limit = TimeLimit(silent, None)
    limit(1, 10, 0.5)
    assert not limit.passed
