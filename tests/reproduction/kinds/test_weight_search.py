"""Rows about a search: what it finds beside equal weights, its picture, and that it goes on where it ended."""

import pytest

from leakgauge.core.progress import silent
from leakgauge.reproduction.kinds.weight_search import search_weights
from leakgauge.reproduction.rows import Method

SETTING = {
    "data": "digits", "model": "dlf_femnist",
    "model_options": {"shape": [1, 8, 8], "classes": 10, "channels": [4, 8], "dense": 16},
    "samples": 4, "lr": 0.005, "epochs": 2, "batch_size": 2, "granted": ["labels"], "threshold": 20.0,
}  # fmt: skip
SEARCHED = Method("searched", "", {"trials": 4, "random": 3, "steps": 20})


def run(method, pictures=None):
    return search_weights(SETTING, method, 0, None, 0, silent, pictures)


def test_a_search_is_scored_kept_and_drawn(tmp_path):
    found = run(SEARCHED, tmp_path / "pictures")
    name = "digits-dlf_femnist-2x2x4-searched-client0"
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"cache", f"{name}.png"}
    unexplained, without = found["values"]["unexplained"]
    assert 0 < unexplained < without == 1.0
    assert found["steps"] == 20
    again = run(SEARCHED, tmp_path / "pictures")
    assert again["values"] == found["values"]
    assert again["seconds"] < found["seconds"]


@pytest.mark.parametrize("weights", [{}, {"q_cv": 10.0}, "case1"], ids=str)
def test_given_weights_are_not_searched(weights):
    found = run(Method("given", "", {"Q": weights, "steps": 20}))
    assert found["values"]["unexplained"][0] < 1
