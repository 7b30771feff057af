"""The frontier: every defence trained with and attacked, judged by the stronger attacker, and said in words."""

import copy
import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from leakscope import frontier
from leakscope.errors import InvalidInput, LeakscopeError, UnknownName
from leakscope.frontier import Plan, Point, measure_frontier, read_plan, write_frontier
from leakscope.metrics import Interval

DOCUMENT = {
    "model": {"name": "lenet", "options": {"shape": [1, 8, 8], "classes": 10}},
    "data": {"name": "digits"},
    "training": {"sends": "gradient", "samples": 1, "lr": 0.3, "batch_size": 10},
    "frontier": {
        "attack": "idlg", "options": {"steps": 8}, "clients": 2, "federation": 2, "federation_samples": 30,
        "rounds": 2, "test": 100,
    },
    "defence": [
        {"title": "no defence"},
        {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 0.5}]},
        {"title": "prune", "chain": [{"name": "random_pruning", "probability": 0.3, "on": "update"}]},
    ],
}  # fmt: skip


def document(**changes):
    return copy.deepcopy(DOCUMENT) | changes


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    plan = read_plan(document(), "f.toml")
    points = list(measure_frontier(plan))
    folder = tmp_path_factory.mktemp("frontier")
    return plan, points, folder, write_frontier(points, plan, folder, "leakscope frontier f.toml")


def test_no_defence_leaks_and_noise_does_not(measured):
    _, points, _, _ = measured
    plain, noise, pruned = points
    assert plain.leaks
    assert plain.psnr.mean > plain.chance + 10
    assert not noise.leaks
    assert 0 <= noise.accuracy <= 1
    assert pruned.leaks
    assert pruned.knows  # the zeros mislead an attacker who takes them for what was sent


def test_everything_is_written_and_says_the_same(measured):
    _, points, folder, page = measured
    rows = list(csv.DictReader((folder / "frontier.csv").read_text().splitlines()))
    assert [row["defence"] for row in rows] == [point.title for point in points]
    assert [row["verdict"] for row in rows] == ["leaks" if point.leaks else "nothing above chance" for point in points]
    assert len(json.loads((folder / "frontier.json").read_text())) == 3
    assert (folder / "frontier.png").read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "Nothing above chance: noise." in text
    assert points[0].sentence().replace("'", "&#39;") in text


def point(leaks, epsilon=None):
    found, recovered = Interval(13.0, 11.0, 15.0), Interval(0.5, 0.4, 0.6)
    return Point("x", "none", 0.9, epsilon, found, 12.0, recovered, 0.1, 4, False, leaks, 1.0)


def test_both_verdicts_are_said_plainly():
    assert (
        point(True).sentence().startswith("x: leaks. An attacker gets 13.0 dB (11.0 to 15.0) where guessing gives 12.0")
    )
    assert point(False).sentence().startswith("x: nothing above chance. An attacker gets 13.0 dB")
    assert "epsilon 1 spent" in point(False, epsilon=0.999).sentence()


WRONG = [
    ({"defence": []}, r"no \[\[defence\]\] to try"),
    ({"defence": [{"chains": []}]}, r"\[\[defence\]\] 1 called 'chains'; did you mean 'chain'"),
    ({"defence": [{"chain": [{"name": "gaussian_noise", "sigma": -1}]}]}, "at least 0"),
    ({"defence": [{"chain": [{"name": "dpsgd", "epsilon": 0}]}]}, "above 0"),
    ({"defence": [{"chain": [{"name": "random_pruning", "probability": 1.0}]}]}, "below 1"),
    ({"defence": [{}, {}]}, "titles must differ"),
    ({"frontier": {"attack": "idlgg"}}, "did you mean 'idlg'"),
    ({"frontier": {"attack": "idlg", "options": {"step": 3}}}, "did you mean 'steps'"),
    ({"frontier": {"clients": 0}}, "clients must be at least 1"),
    ({"frontier": {"rouns": 3}}, "did you mean 'rounds'"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_mistakes_are_refused_before_training_starts(changes, words, monkeypatch):
    monkeypatch.setattr("leakscope.frontier.run_federation", None)
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_plan(document(**changes), "f.toml")


def test_dpsgd_with_batch_norm_is_refused_before_training_starts():
    wrong = document(
        model={"name": "resnet20", "options": {"shape": [1, 8, 8], "classes": 10}},
        defence=[{"chain": [{"name": "dpsgd", "noise": 1.0}]}],
    )
    with pytest.raises(LeakscopeError, match="batch norm"):
        read_plan(wrong, "f.toml")


def test_the_example_is_a_plan():
    path = Path(__file__).parent.parent / "examples" / "frontier.toml"
    found = tomllib.loads(path.read_text())
    assert len(found["defence"]) >= 6
    assert found["data"]["name"] == "mnist5k"
    assert isinstance(read_plan(found | {"data": {"name": "digits"}, "model": DOCUMENT["model"]}, str(path)), Plan)


def test_points_are_kept_and_what_is_changed_is_measured_anew(measured, tmp_path, monkeypatch):
    plan, points, _, _ = measured
    first = list(measure_frontier(plan, folder=tmp_path))
    assert [replace(point, seconds=0.0) for point in first] == [replace(point, seconds=0.0) for point in points]
    monkeypatch.setattr(frontier, "measure_point", lambda plan, title, report: measured_anew.append(title))
    measured_anew = []
    assert list(measure_frontier(plan, folder=tmp_path)) == first
    assert measured_anew == []
    with pytest.raises(TypeError):  # what was measured is no point
        list(measure_frontier(replace(plan, clients=1), folder=tmp_path))
    assert measured_anew
