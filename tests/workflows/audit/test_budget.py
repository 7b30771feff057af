"""The budget of an audit is read, forecast and shared out."""

import copy

import pytest

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation.verdict import Verdict
from leakgauge.runtime import Watch
from leakgauge.workflows.audit import read_audit, run_audit
from leakgauge.workflows.audit.budget import DEFAULT_BUDGET, Forecast, equal_limit, forecast, read_duration
from leakgauge.workflows.audit.plan import Work
from leakgauge.workflows.result import Running
from tests.workflows.audit.test_run import DOCUMENT


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


def test_the_budget_is_shared_out():
    expected = Forecast({"cheap": 1.0, "dear": 100.0}, jobs=2, budget=52.0)
    everything = works("cheap", 4) + works("dear", 4)
    shares = expected.shares(everything)
    assert {work.attack: share for work, share in shares.items()} == {"cheap": 1.0, "dear": 0.25}
    assert "dear to 25% of its steps" in expected.sentence(everything)
    assert expected.total(everything) == 202
    assert set(expected.shares(works("cheap", 4), spent=10.0).values()) == {1.0}
    unlimited = Forecast({"cheap": 1.0, "dear": 100.0}, jobs=2)
    assert set(unlimited.shares(everything).values()) == {1.0}
    assert "no budget" in unlimited.sentence(everything)


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
    assert "shortens inverting_gradients" in listener.notes[0]
    assert all(result.document["scale"] < 1 for result in result.results)
