"""Rows about a search: what it finds beside equal weights, its picture, and that it goes on where it ended."""

import pytest

from leakgauge.reproduction.kinds.weight_search import search_weights
from tests.reproduction.rows_for_tests import job_of, row_of

ROW = row_of(
    {
        "model": {"name": "dlf_femnist", "options": {"channels": [4, 8], "dense": 16}},
        "data": {"name": "digits"},
        "training": {"samples": 4, "lr": 0.005, "epochs": 2, "batch_size": 2},
        "attacker": {"granted": ["labels"]},
    },
    threshold=20.0,
)
SEARCHED = {"trials": 4, "random": 3, "steps": 20}


def run(options, pictures=None, name="searched"):
    """Return the outcome of a search, and the number of steps that were computed for it."""
    steps = []
    outcome = search_weights(job_of(ROW, "", options, name, pictures=pictures), lambda *step: steps.append(step))
    return outcome, len(steps)


def test_a_search_is_scored_kept_and_drawn(tmp_path):
    outcome, steps = run(SEARCHED, tmp_path / "pictures")
    name = "digits-dlf_femnist-2x2x4-searched-client0"
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"cache", f"{name}.png"}
    unexplained = outcome.measures["unexplained"]
    assert 0 < unexplained.value < unexplained.chance == 1.0
    assert outcome.steps == 20
    again, again_steps = run(SEARCHED, tmp_path / "pictures")
    values = [{name: one.value for name, one in result.measures.items()} for result in (outcome, again)]
    assert values[0] == values[1]
    assert again_steps < steps / 2  # the trials are read from the cache


@pytest.mark.parametrize("weights", [{}, {"q_cv": 10.0}, "case1"], ids=str)
def test_given_weights_are_not_searched(weights):
    assert run({"Q": weights, "steps": 20}, name="given")[0].measures["unexplained"].value < 1
