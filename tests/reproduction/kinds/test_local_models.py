"""LMRA's rows: one federation for all methods, each measure beside chance, and the linear case."""

import sys

import pytest
import torch

from leakgauge import cli
from leakgauge.attacks import local_model as inference
from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.core.progress import silent
from leakgauge.data import load
from leakgauge.federation import defences
from leakgauge.reproduction import federations as watched
from leakgauge.reproduction.kinds.local_models import MEASURES, WITHOUT_MODEL, owned, spread
from leakgauge.reproduction.rows import find_rows, papers
from leakgauge.reproduction.runner import run_rows

LEAF = """
title = "A small federation"
kind = "local_models"
[setting]
data = "leaf_synthetic"
data_options = { binary_attribute = true, samples = 60, clients = 3, features = 8, classes = 3 }
partition = "by_group"
clients = 3
hidden = [8]
lr = 0.1
batch_size = 30
rounds = 24
every = 2
references = 4
records = 20
measures = ["zest", "accuracy", "aia", "aia_prior", "sia", "sia_gain"]
[methods.lmra]
attack = "lmra"
options = { samples = 8, steps = 10, training = 10 }
published = { zest = 0.5 }
[methods.last-returned]
attack = "last_returned"
[methods.global]
attack = "global"
[methods.gradient]
attack = "gradient"
options = { steps = 3 }
[methods.equations]
attack = "equations"
options = { steps = 3 }
[methods.inputs]
attack = "inputs"
[methods.columns]
attack = "columns"
[methods.optimal]
attack = "optimal"
"""
DIABETES = """
title = "A regression"
kind = "local_models"
[setting]
data = "diabetes"
standardise = true
partition = "iid"
clients = 4
samples = 40
hidden = [8]
batch_norm = true
lr = 0.05
rounds = 12
every = 2
measures = ["zest", "zest_gain", "mse", "mape", "aia", "aia_prior"]
[methods.last-returned]
attack = "last_returned"
[methods.secant]
attack = "secant"
"""
DIGITS = """
title = "Pictures"
kind = "local_models"
[setting]
data = "digits"
partition = "iid"
partition_options = {}
clients = 3
samples = 30
hidden = [16]
lr = 0.5
rounds = 20
defence = { name = "mixup" }
measures = ["ssim", "sia"]
[short]
setting = { rounds = 3 }
[methods.last-returned]
attack = "last_returned"
[methods.gradient]
attack = "gradient"
options = { steps = 2 }
"""
LINEAR = """
title = "Linear"
kind = "linear"
[setting]
size = 5
samples = 20
noise = 0.5
federation = 5
clients_per_round = 3
lr = 0.05
epochs = 2
clients = 2
[methods.exact]
attack = "exact"
[methods.few]
attack = "exact"
options = { observed = 3 }
[methods.regression]
attack = "least_squares"
options = { observed = 30 }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path))
    (tmp_path / "mine" / "table1").mkdir(parents=True)
    for name, text in (("leaf", LEAF), ("diabetes", DIABETES), ("digits", DIGITS), ("linear", LINEAR)):
        (tmp_path / "mine" / "table1" / f"{name}.toml").write_text(text)
    return tmp_path / "mine" / "table1"


def figures(name, **options):
    return {figure.method.name: figure for figure in run_rows(find_rows("mine", f"table1/{name}"), **options)}


def test_the_gain_is_over_the_last_returned_model_client_by_client(folder):
    found = figures("diabetes")
    assert found["last-returned"].ours["zest_gain"].mean == 0
    gain = found["secant"].ours["zest"].mean - found["last-returned"].ours["zest"].mean
    assert found["secant"].ours["zest_gain"].mean == pytest.approx(gain, abs=1e-6)
    assert found["secant"].ours["zest_gain"].low < gain < found["secant"].ours["zest_gain"].high


def test_a_short_setting_is_what_it_says_and_else_the_rows(folder, monkeypatch):
    seen = []
    original = watched.run_federation
    monkeypatch.setattr(watched, "run_federation", lambda *a, **k: seen.append(k) or original(*a, **k))
    for short in (True, False):
        figures("digits", methods=["last-returned"], short=short)
    assert [(one["rounds"], one["lr"]) for one in seen] == [(3, 0.5), (20, 0.5)]


def test_all_methods_share_one_federation_and_stand_beside_chance(folder, monkeypatch):
    runs = []
    original = watched.run_federation
    monkeypatch.setattr(watched, "run_federation", lambda *a, **k: runs.append(1) or original(*a, **k))
    found = figures("leaf")
    assert len(runs) == 1
    assert set(found["lmra"].ours) == {"zest", "accuracy", "aia", "aia_prior", "sia", "sia_gain"}
    assert set(found["gradient"].ours) == set(found["equations"].ours) == {"aia", "aia_prior", "sia", "sia_gain"}
    assert found["gradient"].ours["sia_gain"].mean == 0
    gain = found["equations"].ours["sia"].mean - found["gradient"].ours["sia"].mean
    assert found["equations"].ours["sia_gain"].mean == pytest.approx(gain)
    assert gain > 0
    assert set(found["columns"].ours) == {"aia"}
    assert set(found["inputs"].ours) == {"sia", "sia_gain"}
    assert "sia" not in found["global"].ours
    assert found["optimal"].ours["zest"].mean == pytest.approx(1)
    for figure in found.values():
        assert figure.clients == 3
        for name, value in figure.ours.items():
            assert -1 <= value.low <= value.mean <= value.high <= 1
            assert name in figure.chance
    assert found["lmra"].to_json()["published"] == {"zest": 0.5}
    assert found["lmra"].chance["sia"] == pytest.approx(1 / 3)
    assert found["lmra"].to_json()["federation_seconds"] > 0


def test_the_same_seed_gives_the_same_figures(folder):
    first = figures("leaf", methods=["lmra"], clients=2)["lmra"]
    watched._KEPT.clear()
    again = figures("leaf", methods=["lmra"], clients=2)["lmra"]
    assert first.ours == again.ours
    assert first.clients == 2


def test_regressions_and_private_statistics(folder):
    found = figures("diabetes")
    assert set(found["secant"].ours) == {"zest", "zest_gain", "mse", "mape", "aia", "aia_prior"}
    assert found["last-returned"].ours["mse"].mean > 0
    assert found["last-returned"].ours["mape"].mean > 0
    assert 0.5 <= found["last-returned"].chance["aia"] <= 1


def test_errors_are_a_share_of_the_target_as_it_was_before_it_was_standardised(folder):
    found = figures("diabetes", methods=["last-returned"])["last-returned"]
    values = load("diabetes").targets
    clients = watched.watched(find_rows("mine", "table1/diabetes")[0].setting, 0, silent).clients
    own = [client.targets * values.std() + values.mean() for client in clients]
    assert all(bool(torch.isin(one.round(), values).all()) for one in own)
    blind = torch.stack([((one.mean() - one) / one).abs().mean() for one in own]).mean()
    assert found.chance["mape"] == pytest.approx(float(blind), rel=1e-4)
    assert watched.target_scale({"data": "diabetes"}) == (0, 1)


def test_duplicates_are_clients_again(folder):
    path = folder / "digits.toml"
    path.write_text(DIGITS.replace("clients = 3", "clients = 3\nduplicates = 4"))
    federation = watched.watched(find_rows("mine", "table1/digits")[0].setting | {"rounds": 1}, 0, silent)
    first, rest = federation.clients[:3], federation.clients[3:]
    assert len(rest) == len(federation.observations) - 3 == 4
    assert all(any(torch.equal(one.inputs, own.inputs) for own in first) for one in rest)


def test_pictures_of_classes(folder, tmp_path):
    found = figures("digits", pictures=tmp_path / "pictures")
    assert found["last-returned"].chance["ssim"] > 0
    for name in found:
        assert (tmp_path / "pictures" / f"faces-{name}.png").stat().st_size > 100


def test_the_linear_case(folder):
    found = figures("linear")
    assert found["exact"].ours["worst_relative_error"].mean < 1e-8
    assert found["exact"].steps == 6
    assert found["few"].ours["relative_error"].mean > 1e-4
    assert found["regression"].ours["relative_error"].mean < found["regression"].ours["relative_bound"].mean + 1e-9
    assert found["regression"].steps == 30


def test_rows_that_cannot_be_are_refused(folder):
    path = folder / "leaf.toml"
    path.write_text(LEAF.replace('"zest", "accuracy"', '"zst", "accuracy"'))
    with pytest.raises(CorruptFile, match="not 'zst'"):
        figures("leaf")
    path.write_text(LEAF.replace("rounds = 24", "rounds = 24\nround = 3"))
    with pytest.raises(CorruptFile, match="no 'round'"):
        figures("leaf")
    path.write_text(LEAF.replace('"by_group"', '"by_groups"'))
    with pytest.raises(CorruptFile, match="partition is one of"):
        figures("leaf")
    with pytest.raises(InvalidInput, match="there are 10 clients"):
        spread(10, 11)


def test_clients_are_spread_evenly():
    assert spread(10, 10) == list(range(10))
    assert spread(10, 3) == [0, 3, 6]
    digits = load("digits").share(range(50))
    assert len(owned(digits)) == 4


def test_the_command_line_names_lmras_rows(monkeypatch, capsys):
    assert "lmra" in papers()
    monkeypatch.setattr(sys, "argv", ["leakgauge", "bench", "lmra", "--list"])
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr().out
    for row in (
        "linear/exact",
        "linear/stochastic",
        "table1/adult",
        "table1/leaf",
        "table10/orl-dp",
        "figure2/adult-50",
    ):
        assert row in printed


def test_every_row_names_things_that_exist():
    rows = find_rows("lmra")
    for row in rows:
        assert row.kind in ("linear", "local_models")
        if row.kind == "linear":
            continue
        assert row.setting.keys() <= watched.KEYS, row.name
        assert set(row.setting["measures"]) <= set(MEASURES), row.name
        assert row.setting["partition"] in watched.PARTITIONS
        chosen = row.setting.get("defence", [])
        assert {one["name"] for one in chosen} <= defences.DEFENCES.keys()
        for method in row.methods.values():
            if method.attack not in (*WITHOUT_MODEL, "optimal"):
                inference.build(method.attack, **method.options)
    names = {row.name.partition("/")[0] for row in rows}
    assert names == {
        "linear",
        "quick",
        "table1",
        "table9",
        "table10",
        *(f"figure{number}" for number in (2, 3, 4, 6, 7)),
    }
