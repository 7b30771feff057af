"""The frontier: every defence trained with and attacked, judged by the stronger attacker, and said in words."""

import copy
import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from leakgauge.core.errors import InvalidInput, LeakgaugeError, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.evaluation.verdict import Verdict
from leakgauge.reports.frontier import _own_chance, sentence, write_frontier
from leakgauge.workflows import frontier
from leakgauge.workflows.frontier import Point, run_frontier
from leakgauge.workflows.frontier_plan import FrontierPlan, read_frontier

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
    plan = read_frontier(document(), "f.toml")
    folder = tmp_path_factory.mktemp("frontier")
    found = run_frontier(plan, folder / "cache")
    return plan, found.points, folder, write_frontier(found, folder, "leakgauge frontier f.toml")


def test_no_defence_leaks_and_noise_does_not(measured):
    _, points, _, _ = measured
    plain, noise, pruned = points
    assert plain.verdict is Verdict.RECOVERS_DATA
    assert plain.leakage["psnr"].value > plain.leakage["psnr"].chance + 10
    assert noise.verdict is Verdict.INCONCLUSIVE  # idlg has failed, and sends the guess instead
    assert noise.failed
    assert noise.leakage["psnr"].value == noise.leakage["psnr"].chance
    assert 0 <= noise.utility <= 1
    assert pruned.verdict.leaks
    assert pruned.knows_defence  # the zeros mislead an attacker who takes them for what was sent


def test_an_attacker_with_public_data_stands_beside_the_other(tmp_path):
    defences = [DOCUMENT["defence"][0], {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 50.0}]}]
    plan = read_frontier(document(attacker={"public": 150, "granted": ["labels"]}, defence=defences), "f.toml")
    found = run_frontier(plan, tmp_path / "cache")
    write_frontier(found, tmp_path)
    plain, noise = found.points
    assert plain.public is not None
    assert noise.public is not None
    assert plain.public.leakage["psnr"].value > plain.public.leakage["psnr"].chance
    assert not noise.public.verdict.leaks
    assert noise.public.leakage["psnr"].value == pytest.approx(noise.public.leakage["psnr"].chance, abs=1)
    assert {finding.attack for finding in found.findings} == {"idlg", "learned_inversion"}
    assert "An attacker who has 150 samples of digits that no client holds" in sentence(noise, plan)
    rows = list(csv.DictReader((tmp_path / "frontier.csv").read_text().splitlines()))
    assert float(rows[0]["psnr with public data"]) == pytest.approx(plain.public.leakage["psnr"].value, rel=1e-3)
    page = (tmp_path / "frontier.html").read_text()
    assert "A square is an attacker who also has 150 samples of digits" in page
    assert json.loads((tmp_path / "frontier.json").read_text())["points"][1]["public"]["knows_defence"] in (True, False)


def test_everything_is_written_and_says_the_same(measured):
    plan, points, folder, page = measured
    rows = list(csv.DictReader((folder / "frontier.csv").read_text().splitlines()))
    assert [row["defence"] for row in rows] == [point.title for point in points]
    assert [row["verdict"] for row in rows] == [str(point.verdict) for point in points]
    assert len(json.loads((folder / "frontier.json").read_text())["points"]) == 3
    for name in ("frontier.png", "frontier-recovered.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "Inconclusive: noise." in text
    assert sentence(points[0], plan).replace("'", "&#39;") in text


def test_verdicts_are_said_plainly(measured):
    leakage = {
        "psnr": Measure("psnr", 13.0, 11.0, 15.0, 12.0, n=4, of="clients"),
        "recovered": Measure("recovered", 0.5, 0.4, 0.6, 0.1, n=4, of="clients"),
    }
    point = Point("x", "none", 0.9, 0.999, leakage, True, Verdict.RECOVERS_DATA, 1.0)
    assert sentence(point, measured[0]) == (
        "x: recovers data. PSNR of what comes back 13.0 dB (chance 12.0 dB, 11.0 to 15.0); share of samples recovered "
        "50% (chance 10%), over 4 clients. Accuracy 90%, epsilon 1 spent. The attacker knows the defence."
    )


TABLE = {
    "model": {"name": "mlp", "options": {"hidden": [64]}},
    "data": {"name": "diabetes"},
    "training": {"sends": "gradient", "samples": 20, "lr": 0.01},
    "frontier": {
        "attack": "attribute_inference", "clients": 3, "federation": 2, "federation_samples": 30, "rounds": 2,
        "test": 50,
    },
    "defence": [
        {"title": "no defence"},
        {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 1e6}]},
    ],
}  # fmt: skip


def test_a_tables_sensitive_column_against_the_error_of_a_regression(tmp_path):
    plan = read_frontier(TABLE, "f.toml")
    found = run_frontier(plan, tmp_path / "cache")
    plain, noise = found.points
    assert plain.verdict is Verdict.RECOVERS_ATTRIBUTES
    assert plain.leakage["attribute_accuracy"].value > 0.95
    assert noise.verdict is Verdict.INCONCLUSIVE  # the attack infers less than a guess
    assert noise.leakage["attribute_accuracy"].excess < -0.03
    assert noise.utility > plain.utility  # an error
    assert "Mean squared error" in sentence(plain, plan)
    assert "Inconclusive: noise." in write_frontier(found, tmp_path).read_text()
    assert (tmp_path / "frontier.png").exists()
    again = run_frontier(plan, tmp_path / "cache").points
    assert [point.seconds for point in again] == [plain.seconds, noise.seconds]


OWNERS: dict[str, Any] = TABLE | {
    "frontier": {
        "attack": "attribute_inference", "clients": 4, "federation": 4, "federation_samples": 5, "rounds": 2,
        "test": 50, "sources": "source_by_equations",
    },
    "defence": [
        {"title": "no defence"},
        {"title": "8 clients", "clients": 8},
        {"title": "pairs", "chain": [{"name": "secure_aggregation", "clients": 2}]},
        {"title": "one sum", "chain": [{"name": "secure_aggregation", "clients": 4}]},
        {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 1e6}]},
    ],
}  # fmt: skip


def test_owners_of_records_beside_attributes(tmp_path):
    plan = read_frontier(OWNERS, "f.toml")
    found = run_frontier(plan, tmp_path / "cache")
    shares = {point.title: point.leakage["source_accuracy"] for point in found.points}
    assert {title: one.chance for title, one in shares.items()} == {
        "no defence": 1 / 4, "8 clients": 1 / 8, "pairs": 1 / 4, "one sum": 1 / 4, "noise": 1 / 4,
    }  # fmt: skip
    assert {point.title: point.clients for point in found.points}["8 clients"] == 8
    assert shares["no defence"].value > 0.9
    assert shares["8 clients"].value > 1 / 8 + 0.2
    assert 0.4 < shares["pairs"].value <= 0.5  # the right sum, and one of its two clients
    assert (shares["one sum"].value, shares["one sum"].low) == (1 / 4, None)
    owners = {point.title: point.owners.verdict for point in found.points}
    assert owners["no defence"] is owners["pairs"] is owners["8 clients"] is Verdict.RECOVERS_ATTRIBUTES
    assert owners["one sum"] is Verdict.NOTHING_ABOVE_CHANCE
    assert not owners["noise"].leaks
    assert len(found.findings) == 10
    labels = [_own_chance(shares[title], "source_accuracy", 1 / 4) for title in ("no defence", "8 clients")]
    assert labels == ["", " (guess 12%)"]
    page = write_frontier(found, tmp_path).read_text()
    assert "Share of sensitive values inferred, and share of records whose client is found" in page
    with Image.open(tmp_path / "frontier.png") as picture:
        assert picture.height > picture.width  # two charts below each other
    rows = list(csv.DictReader((tmp_path / "frontier.csv").read_text().splitlines()))
    assert [row["clients"] for row in rows] == ["4", "8", "4", "4", "4"]
    assert len(run_frontier(plan, tmp_path / "cache").points) == 5


WRONG_OWNERS = [
    ({"frontier": {**OWNERS["frontier"], "sources": "source_by_loss"}}, "attack on the owners of records"),
    ({"frontier": {**OWNERS["frontier"], "clients": 3}}, "multiple of 2"),
    ({"defence": [{"clients": 8}, {"clients": 8, "title": "again"}]}, "the same chain"),
    ({"defence": [{"clients": 0}]}, "clients must be"),
    ({"defence": [{"title": "many", "clients": 1000}]}, "too few for"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG_OWNERS, ids=[words for _, words in WRONG_OWNERS])
def test_rounds_whose_owners_cannot_be_inferred_are_refused(changes, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_frontier(OWNERS | changes, "f.toml")


WRONG = [
    ({"defence": []}, r"no \[\[defence\]\] to try"),
    ({"defence": [{"chains": []}]}, r"\[\[defence\]\] 1 called 'chains'; did you mean 'chain'"),
    ({"defence": [{"chain": [{"name": "gaussian_noise", "sigma": -1}]}]}, "at least 0"),
    ({"defence": [{"chain": [{"name": "dpsgd", "epsilon": 0}]}]}, "above 0"),
    ({"defence": [{"chain": [{"name": "random_pruning", "probability": 1.0}]}]}, "below 1"),
    ({"defence": [{}, {}]}, "Titles must differ"),
    ({"frontier": {"attack": "idlgg"}}, "did you mean 'idlg'"),
    ({"frontier": {"attack": "idlg", "options": {"step": 3}}}, "did you mean 'steps'"),
    ({"frontier": {"attack": "attribute_inference"}}, "Name a sensitive column"),
    ({"frontier": {"clients": 0}}, "clients must be a whole number of at least 1"),
    ({"frontier": {"rouns": 3}}, "did you mean 'rounds'"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_mistakes_are_refused_before_training_starts(changes, words, monkeypatch):
    monkeypatch.setattr("leakgauge.workflows.frontier.run_federation", None)
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_frontier(document(**changes), "f.toml")


def test_dpsgd_with_batch_norm_is_refused_before_training_starts():
    wrong = document(
        model={"name": "resnet20", "options": {"shape": [1, 8, 8], "classes": 10}},
        defence=[{"chain": [{"name": "dpsgd", "noise": 1.0}]}],
    )
    with pytest.raises(LeakgaugeError, match="batch norm"):
        read_frontier(wrong, "f.toml")


def test_the_example_is_a_plan():
    path = Path(__file__).parents[2] / "examples" / "frontier.toml"
    found = tomllib.loads(path.read_text())
    assert len(found["defence"]) >= 6
    assert found["data"]["name"] == "mnist5k"
    smaller = {"frontier": {**found["frontier"], "federation_samples": 10, "test": 100}}
    changed = found | smaller | {"data": {"name": "digits"}, "model": DOCUMENT["model"]}
    assert isinstance(read_frontier(changed, str(path)), FrontierPlan)


def test_the_example_of_attributes_is_a_plan():
    path = Path(__file__).parents[2] / "examples" / "frontier-attributes.toml"
    found = tomllib.loads(path.read_text())
    assert found["frontier"]["attack"] == "attribute_inference"
    smaller = {
        "frontier": {**found["frontier"], "federation": 2, "federation_samples": 10, "test": 100},
        "training": {**found["training"], "samples": 5},
        "data": {"name": "personal_effects", "options": {"clients": 10}},
    }
    plan = read_frontier(found | smaller, str(path))
    assert list(plan.chains) == [table["title"] for table in found["defence"]]
    assert plan.sources.name == "source_by_equations"
    assert {plan.clients_of(title) for title in plan.chains} == {10, 40}


def figures(points):
    return [
        (point.title, point.utility, {name: one.to_row() for name, one in point.leakage.items()}) for point in points
    ]


def test_points_are_cached_and_what_is_changed_is_measured_anew(measured, monkeypatch):
    plan, points, folder, _ = measured
    measured_anew = []

    def point(plan, title, report, device):
        measured_anew.append(title)
        return replace(points[0], title=title)

    monkeypatch.setattr(frontier, "measure_point", point)
    assert figures(run_frontier(plan, folder / "cache").points) == figures(points)
    assert measured_anew == []
    run_frontier(replace(plan, clients=1), folder / "cache")
    assert measured_anew == list(plan.chains)
