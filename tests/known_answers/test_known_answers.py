"""The short form of the known answers: each row through the real audit, with few attacks on few clients."""

import pytest
import torch

from leakgauge.evaluation.verdict import Verdict
from tests.known_answers.gauntlet import page
from tests.known_answers.held_out import HELD_OUT
from tests.known_answers.known_answer import DATA, NO_SAMPLES, KnownAnswer, gradient
from tests.known_answers.runner import Outcome, run
from tests.known_answers.table import COUNTING, DENSE, LINEAR, TABLE

SHORT = [row for row in TABLE if row.short is not None and not row.needs]

UNPROVEN = [row for row in SHORT if row.why in (COUNTING, LINEAR)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("answer", SHORT, ids=lambda answer: answer.name)
def test_the_verdict_is_right(answer, cache):
    torch.set_num_threads(1)
    outcome = run(answer, cache, short=True)
    allowed = ("right", "inconclusive") if answer in UNPROVEN else ("right",)
    assert outcome.status in allowed, f"{outcome.status}: {outcome.verdict}. {outcome.reason} {outcome.failures}"


def test_few_rows_may_be_inconclusive():
    """Nothing can be found in them, but no proof shows it, and the short attacks may end below a guess."""
    assert len(UNPROVEN) <= len(SHORT) / 10


def test_the_tables_are_large_and_their_names_differ():
    names = [row.name for row in (*TABLE, *HELD_OUT)]
    assert len(names) == len(set(names))
    assert len(SHORT) >= 40
    assert len(HELD_OUT) >= 10
    assert all(row.why and row.right for row in (*TABLE, *HELD_OUT))


@pytest.mark.parametrize(
    ("right", "verdict", "status"),
    [
        (DATA, Verdict.RECOVERS_DATA, "right"),
        (DATA, Verdict.RECOVERS_ATTRIBUTES, "false safe"),
        (DATA, Verdict.NOTHING_ABOVE_CHANCE, "false safe"),
        (DATA, Verdict.INCONCLUSIVE, "inconclusive"),
        (DATA, None, "failed"),
        (NO_SAMPLES, Verdict.RECOVERS_DATA, "false leak"),
        (NO_SAMPLES, Verdict.RECOVERS_ATTRIBUTES, "right"),
    ],
)
def test_a_verdict_is_compared_with_the_right_ones(right, verdict, status):
    answer = KnownAnswer("a set-up", DENSE, gradient(1), right, "by hand")
    outcome = Outcome(answer, verdict, "figures", 1.0)
    assert outcome.status == status
    assert f"| {status} |" in page([outcome])


def test_an_error_is_an_outcome_in_words(cache):
    answer = KnownAnswer("a set-up", {"name": "no_such_network"}, gradient(1), DATA, "by hand")
    outcome = run(answer, cache, short=True)
    assert outcome.status == "failed"
    assert "no_such_network" in outcome.reason
