"""Ctrl-C at many moments of an audit. What is finished is kept, and so is the best result of what was running."""

import functools
import os
import signal
from dataclasses import replace

import pytest

import leakgauge as lg
from leakgauge.attacks.inversion import solve
from leakgauge.evaluation.support import INTERRUPTED
from leakgauge.evaluation.verdict import Verdict
from leakgauge.runtime import Watch
from leakgauge.workflows.audit import read_audit, run_audit
from leakgauge.workflows.audit import run as module
from leakgauge.workflows.result import Running
from tests.workflows.audit.test_budget import document

STEPS = 12
CHOSEN = {"attacks": [{"name": "inverting_gradients", "steps": STEPS}], "clients": 2}


def press():
    os.kill(os.getpid(), signal.SIGINT)


class Pressing(Watch):
    """A listener that presses Ctrl-C at a step of a task."""

    def __init__(self, number, step):
        self.number, self.at, self.names = number, step, []

    def began(self, task):
        self.names.append(task.name)

    def step(self, task, step, total, loss):
        if len(self.names) == self.number and step == self.at:
            press()


@functools.cache
def plan():
    return read_audit(document(audit=CHOSEN, defence=[]), "a")


def audit(folder, watch=None):
    return run_audit(plan(), folder, Running(engine="in-process", watch=watch))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The audit that nobody interrupted, and the names of its tasks."""
    watch = Pressing(0, 0)
    return audit(tmp_path_factory.mktemp("whole"), watch), watch.names


def scores(result):
    return [(one.work, one.document["scores"], one.document["outcome"]) for one in result.results]


@pytest.mark.parametrize(("number", "step"), [(1, 7), (2, STEPS - 1)])
def test_the_best_iterate_is_kept_and_the_next_run_ends_like_one_that_was_left_alone(number, step, tmp_path, whole):
    left_alone, tasks = whole
    part = audit(tmp_path, Pressing(number, step))
    assert not part.complete
    assert len(part.results) == number
    *finished, last = part.results
    assert scores(part)[:-1] == scores(left_alone)[: len(finished)]
    assert last.interrupted
    assert last.cut_short
    assert len(last.tensors["losses"]) == step
    assert "interrupted" in last.document["outcome"]
    assert last.document["scores"]["psnr"]["value"] > 0
    assert part.verdict is not Verdict.NOTHING_ABOVE_CHANCE
    if part.verdict is Verdict.INCONCLUSIVE:
        assert part.findings[-1].reason == INTERRUPTED
    again = Pressing(0, 0)
    assert scores(audit(tmp_path, again)) == scores(left_alone)
    assert again.names == tasks[len(finished) :]  # finished attacks are not run again


def test_a_run_that_is_interrupted_again_keeps_the_better_result(tmp_path):
    late = audit(tmp_path, Pressing(1, 9)).results[0]
    early = audit(tmp_path, Pressing(1, 2)).results[0]
    assert early.document["loss"] == late.document["loss"]


def test_an_interrupt_that_the_forecast_catches_ends_the_audit(tmp_path, monkeypatch):
    evaluate, looks = solve._one_by_one, []

    def interrupted(*arguments):
        looks.append(1)
        if len(looks) == 2:
            press()
        return evaluate(*arguments)

    monkeypatch.setattr(solve, "_one_by_one", interrupted)
    part = audit(tmp_path, Pressing(0, 0))
    assert not part.complete
    assert not part.results


def test_an_interrupt_while_a_result_is_scored_loses_nothing(tmp_path, monkeypatch, whole):
    score = module.attack_client

    def scored(**arguments):
        result = score(**arguments)
        press()
        return result

    monkeypatch.setattr(module, "attack_client", scored)
    part = audit(tmp_path)
    assert not part.complete
    assert scores(part) == scores(whole[0])[:1]
    assert not part.results[0].interrupted


def test_the_page_of_an_interrupted_audit_shows_what_was_finished(tmp_path):
    first = lg.audit(plan(), tmp_path / "out", watch=Pressing(2, 3), engine="in-process")
    assert first.exit_code == 130
    page = first.page.read_text()
    assert "not complete" in page
    assert first.results[-1].interrupted


def test_redacted_results_of_interrupted_attacks_hold_no_samples(tmp_path):
    running = Running(engine="in-process", watch=Pressing(1, 3))
    run_audit(plan(), tmp_path, running, samples=False)
    [again] = run_audit(
        replace(plan(), clients=1), tmp_path, replace(running, watch=Pressing(1, 1)), samples=False
    ).results
    assert "reconstructed" not in again.tensors
