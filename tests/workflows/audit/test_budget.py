"""The budget of an audit is read, forecast and shared out."""

import copy
import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation.support import TOO_LITTLE_TIME
from leakgauge.evaluation.verdict import Verdict
from leakgauge.runtime import Watch
from leakgauge.workflows.audit import budget, read_audit, run, run_audit
from leakgauge.workflows.audit.budget import DEFAULT_BUDGET, Allowance, Forecast, equal_limit, forecast, read_duration
from leakgauge.workflows.audit.plan import Work
from leakgauge.workflows.result import Running
from tests.attacks.analytic.cases import client, dense
from tests.workflows.audit.test_run import DOCUMENT, HERE


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), (30, 30), ("2 min", 120), ("none", None)]
)
def test_durations_are_read(text, seconds):
    assert read_duration(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "ten", "-5m", "5 weeks", "0", True, "nan", "1e9"])
def test_wrong_durations_are_refused(text):
    with pytest.raises(InvalidInput, match="90s, 10m or 1h"):
        read_duration(text, "--budget")


def test_cheap_attacks_keep_their_time_and_expensive_ones_share_the_rest():
    assert equal_limit([1, 2, 30, 30], 23) == 10
    assert equal_limit([1, 2], 10) == float("inf")
    assert equal_limit([5, 5], 0) == 0


def works(name, count):
    return [Work("no defence", name, False, client) for client in range(count)]


@pytest.fixture
def noon(monkeypatch):
    """Let the clock stand still, until a test sets it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(budget.time, "time", lambda: clock.now)
    return clock


def test_the_budget_is_shared_out(noon):
    expected = Forecast({"cheap": 1.0, "dear": 100.0}, jobs=2, budget=52.0)
    everything = works("cheap", 4) + works("dear", 4)
    parts = expected.allowances(everything)
    shortened = 0.25 * budget.PLANNED
    assert {work.attack: part.share for work, part in parts.items()} == {"cheap": 1.0, "dear": shortened}
    spare = 2 * 52 - 4 - 4 * 100 * shortened
    assert parts[everything[0]].seconds() == pytest.approx(1 + spare / 8)
    assert f"dear to {shortened:.0%} of its steps" in expected.sentence(everything)
    assert expected.total(everything) == 202
    unlimited = Forecast({"cheap": 1.0, "dear": 100.0}, jobs=2)
    assert set(unlimited.allowances(everything).values()) == {Allowance()}
    assert Allowance().seconds() is None
    assert "no budget" in unlimited.sentence(everything)


def test_time_that_nobody_needs_is_divided_equally(noon):
    expected = Forecast({"cheap": 1.0}, jobs=2, budget=52.0)
    first, *_ = expected.allowances(works("cheap", 4), spent=10.0).values()
    assert (first.share, first.seconds()) == (1.0, 1.0 + (84 - 4) / 4)
    [alone] = expected.allowances(works("cheap", 1)).values()
    assert alone.seconds() == 52.0  # one task uses one core


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_no_attack_runs_on_after_the_budget_however_slow_the_machine_is(noon, slower):
    expected = Forecast({"cheap": 1.0, "dear": 100.0}, jobs=1, budget=52.0)
    for part in expected.allowances(works("cheap", 4) + works("dear", 4)).values():
        limit = part.seconds()
        assert limit > 0.1 * part.expected  # those before it left something
        noon.now += min(slower * part.expected, limit)
    assert noon.now <= 1052.0 + 1e-6


def test_the_forecast_names_what_may_make_the_audit_shorter_or_longer():
    expected, everything = Forecast({"cheap": 1.0, "dear": 100.0}, jobs=1, budget=500.0), works("cheap", 4)
    sentence = expected.sentence([*everything, *works("dear", 4)], everything, works("dear", 1))
    assert "about 6.7 min (1 attack at a time), within the budget of 8.3 min" in sentence
    assert "exact attacks find every sample, it takes about 4.0 s" in sentence
    assert "positive controls take up to 96 s more" in sentence
    assert "If" not in expected.sentence(everything)


def test_one_attack_cannot_use_the_time_of_two_cores():
    expected = Forecast({"dear": 100.0}, jobs=2, budget=50.0)
    [alone] = expected.allowances(works("dear", 1)).values()
    assert alone.share == 0.5 * budget.PLANNED


def test_without_time_an_attack_takes_one_step():
    expected = Forecast({"dear": 100.0}, jobs=2, budget=50.0)
    for part in expected.allowances(works("dear", 2), spent=60.0).values():
        assert (part.share, part.seconds()) == (0.0, 0.0)


def test_a_sum_of_clients_costs_more():
    expected = Forecast({"dear": 10.0}, jobs=1, weights={"sum of 5": 5})
    assert expected.cost(Work("sum of 5", "dear", False, 0)) == 50
    assert expected.cost(Work("sum of 5", "dear", False, 0, control="one sample")) == 10


class Listener(Watch):
    def __init__(self):
        self.notes = []

    def note(self, sentence):
        self.notes.append(sentence)


def document(**changes):
    plain = {key: copy.deepcopy(DOCUMENT[key]) for key in ("model", "data", "training")}
    return plain | changes


def test_a_default_audit_has_a_budget_and_a_chosen_one_has_none():
    assert read_audit(document(), "a").budget == DEFAULT_BUDGET
    assert read_audit(document(audit={"attacks": ["idlg"]}), "a").budget is None
    assert read_audit(document(audit={"attacks": ["idlg"], "budget": "10m"}), "a").budget == 600


def test_every_attack_has_a_forecast():
    plan = read_audit(document(audit={"attacks": [{"name": "inverting_gradients", "steps": 50}, "idlg"]}), "a")
    seconds = forecast(plan, jobs=1).seconds
    assert seconds["idlg"] > seconds["inverting_gradients"] > 0


def test_an_attack_that_was_cut_short_is_no_evidence_and_the_listener_hears_of_it(tmp_path):
    listener = Listener()
    chosen = {"attacks": [{"name": "inverting_gradients", "steps": 100_000}], "clients": 1, "budget": "1s"}
    hidden = {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 5.0}]}
    plan = read_audit(document(audit=chosen, defence=[hidden]), "a")
    result = run_audit(plan, tmp_path, Running(engine="in-process", watch=listener))
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.RECOVERS_ATTRIBUTES)
    assert any("--budget" in one.reason for one in result.findings)
    assert "shortens inverting_gradients" in listener.notes[1]
    assert all(result.cut_short for result in result.results)


def plan_with(budget, **changes):
    chosen = {"attacks": [{"name": "inverting_gradients", "steps": 20}], "clients": 1, "budget": budget}
    return read_audit(document(audit=chosen, **changes), "a")


def free(plan, jobs, check=None):
    """Forecast that every attack is free, so that no attack is shortened before it starts."""
    return Forecast(dict.fromkeys(plan.attacks, 0.0), jobs, plan.budget)


@pytest.fixture
def late(monkeypatch):
    """Let every attack run out of time at its first report, and return a list of the attacks that ran."""
    attacked, attack_client = [], run.attack_client

    def attack(work, allowance, **arguments):
        attacked.append(work)
        over = None if allowance.deadline is None else replace(allowance, deadline=0.0)
        return attack_client(work=work, allowance=over, **arguments)

    monkeypatch.setattr(run, "attack_client", attack)
    monkeypatch.setattr(run, "forecast", free)
    return attacked


def test_an_attack_that_runs_over_is_ended_and_its_best_result_counts_and_a_larger_budget_runs_it_again(late, tmp_path):
    short = run_audit(plan_with("1000s"), tmp_path, HERE)
    [result] = short.results
    assert result.cut_short
    assert "ended by the budget" in result.document["outcome"]
    assert result.document["scores"]["psnr"]["value"] > 0
    assert len(result.tensors["losses"]) == 1
    assert short.complete
    assert short.verdict is not Verdict.NOTHING_ABOVE_CHANCE
    assert TOO_LITTLE_TIME in short.findings[0].reason
    assert len(late) == 1  # a control would show nothing about an attack that was ended

    run_audit(plan_with("900s"), tmp_path, HERE)
    run_audit(plan_with("1000s"), tmp_path, HERE)
    assert len(late) == 1
    for larger, count in (("1001s", 2), ("none", 3)):
        again = run_audit(plan_with(larger), tmp_path, HERE)
        assert len([work for work in late if not work.control]) == count
    assert not again.results[0].cut_short
    run_audit(plan_with("1s"), tmp_path, HERE)  # a complete result serves every budget
    assert len([work for work in late if not work.control]) == 3


def test_controls_that_run_over_support_nothing(tmp_path, monkeypatch):
    attack_client = run.attack_client

    def attack(work, allowance, **arguments):
        over = replace(allowance, deadline=0.0) if work.control else None
        return attack_client(work=work, allowance=over, **arguments)

    monkeypatch.setattr(run, "attack_client", attack)
    monkeypatch.setattr(run, "forecast", free)
    training = {"sends": "gradient", "samples": 8}
    result = run_audit(plan_with("1000s", training=training), tmp_path, HERE)
    assert {(one.verdict, one.reason) for one in result.controls} == {(Verdict.INCONCLUSIVE, TOO_LITTLE_TIME)}
    assert result.verdict is not Verdict.NOTHING_ABOVE_CHANCE


def test_without_time_controls_are_left_out_and_nothing_is_safe(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "forecast", free)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=itertools.count(0.0, 100.0).__next__))
    result = run_audit(plan_with("250s", training={"sends": "gradient", "samples": 8}), tmp_path, HERE)
    assert not result.controls
    assert result.verdict is not Verdict.NOTHING_ABOVE_CHANCE
    assert any(TOO_LITTLE_TIME in one.reason for one in result.findings)


@dataclass(frozen=True)
class Exact(Attack):
    """An attack that takes some seconds of a clock that stands still otherwise, and reports after each."""

    seconds: int
    clock: object
    own: float | None = None
    total: int | None = None

    def run(self, observation, seed, report):
        for second in range(self.seconds):
            self.clock.now += 1.0
            report(second + 1, self.total, 0.0)
        return Reconstruction(torch.zeros(1, 1, 8, 8), None, Outcome("converged", 0, "done"))

    def forecast(self, observation):
        return self.own


@pytest.mark.parametrize(
    ("seconds", "own", "total", "expected"),
    [
        (1, 50.0, None, 1.0),  # it is done within the trial, and its own upper limit is far off
        (9, None, None, budget.LONGER * budget.TRIED),
        (9, None, 20, 20.0),  # its steps are counted
        (9, 0.5, 20, budget.TRIED),  # its own estimate is too low
        (9, 25 * budget.TRIED, None, 5 * budget.TRIED),  # the geometric mean of the trial and of its own upper limit
    ],
)
def test_an_exact_attack_is_tried_for_a_moment(monkeypatch, seconds, own, total, expected):
    clock = SimpleNamespace(now=0.0)
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(budget.time, name, lambda: clock.now)
    observation, _ = client(dense(8), 1)
    assert budget._tried(Exact(seconds, clock, own, total), observation, 0) == expected
    assert clock.now <= budget.TRIED + 1
