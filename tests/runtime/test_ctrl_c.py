"""The first Ctrl-C lets running tasks return what they have, and a second one ends them at once."""

import os
import signal
import threading

import pytest

from leakgauge.core.errors import LeakgaugeError
from leakgauge.runtime import Task, engines, run_tasks
from leakgauge.runtime.ctrl_c import Stop, stopping
from tests.runtime.work import Noted, best_so_far


def press():
    os.kill(os.getpid(), signal.SIGINT)


class Pressing(Noted):
    """A listener that presses Ctrl-C at the first step of a task."""

    def step(self, task, step, total, loss):
        if task.name == "second" and step == 1:
            press()


def until_interrupted(engine):
    """Run three tasks of which the second is interrupted, and return the results."""
    tasks = [
        Task(name, best_so_far, {"steps": steps}) for name, steps in (("first", 1), ("second", 10**9), ("third", 1))
    ]
    results = {}

    def collect(stop):
        for task, value in run_tasks(tasks, engine=engine, jobs=1, watch=Pressing(), stop=stop):
            results[task.name] = value

    with stopping() as stop:
        with pytest.raises(KeyboardInterrupt):
            collect(stop)
        assert stop.presses == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return results


@pytest.mark.parametrize("engine", ["in-process", "processes"])
def test_the_running_task_returns_what_it_has_and_no_further_task_starts(engine):
    results = until_interrupted(engine)
    assert results["first"] == (1, "done")
    step, outcome = results["second"]
    assert step >= 1
    assert outcome == "interrupted"
    assert "third" not in results


def test_the_first_interrupt_is_counted_and_the_second_is_raised(capfd):
    with stopping(sentence="wait a moment") as stop:
        press()
        assert stop.requested
        assert capfd.readouterr().err == "wait a moment\n"
        with pytest.raises(KeyboardInterrupt):
            press()
        assert stop.presses == 2


def test_ignored_interrupts_and_other_threads_are_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping() as stop:
            press()
        assert not stop.requested
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def elsewhere():
        with stopping():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_workers_that_ctrl_c_ends_while_they_start_are_no_error(monkeypatch):
    def ended(tasks, engine, jobs, watch, common, failures, stop):
        stop.presses += 1
        yield tasks[0], None
        raise LeakgaugeError("worker processes cannot be started")

    monkeypatch.setattr(engines, "_on_engine", ended)
    tasks = [Task("first", best_so_far, {"steps": 1})]
    with pytest.raises(KeyboardInterrupt):
        list(run_tasks(tasks, stop=Stop()))
