"""LMRA's rows: one federation for all methods, each measure beside chance, and the linear case."""

from functools import cache

import pytest
import torch

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.progress import silent
from leakgauge.data import load
from leakgauge.reproduction import federations
from leakgauge.reproduction.kinds.local_models import frequent_classes, spread
from leakgauge.reproduction.rows import find_rows, papers
from leakgauge.reproduction.runner import Choice, run_rows
from leakgauge.reproduction.setting import Setting

LEAF = """
[row]
title = "A small federation"
kind = "local_models"
clients = 3
references = 4
records = 20
measures = ["zest", "accuracy", "aia", "aia_prior", "sia", "sia_gain"]
[model]
name = "mlp"
options = { hidden = [8] }
[data]
name = "leaf_synthetic"
options = { binary_attribute = true, samples = 60, clients = 3, features = 8, classes = 3 }
partition = "by_group"
[training]
lr = 0.1
batch_size = 30
[federation]
clients = 3
rounds = 24
every = 2
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
[row]
title = "A regression"
kind = "local_models"
clients = 4
measures = ["zest", "zest_gain", "mse", "mape", "aia", "aia_gain", "aia_prior"]
[model]
name = "mlp"
options = { hidden = [8], batch_norm = true }
[data]
name = "diabetes"
standardise_targets = true
partition = "iid"
[training]
samples = 40
lr = 0.05
[federation]
clients = 4
rounds = 12
every = 2
[methods.last-returned]
attack = "last_returned"
[methods.secant]
attack = "secant"
"""
DIGITS = """
[row]
title = "Pictures"
kind = "local_models"
clients = 3
measures = ["ssim", "sia"]
[model]
name = "mlp"
options = { hidden = [16] }
[data]
name = "digits"
partition = "iid"
partition_options = {}
[training]
samples = 30
lr = 0.5
[[defence]]
chain = [{ name = "mixup" }]
[federation]
clients = 3
rounds = 20
[short]
federation = { rounds = 3 }
[methods.last-returned]
attack = "last_returned"
[methods.gradient]
attack = "gradient"
options = { steps = 2 }
"""
LINEAR = """
[row]
title = "Linear"
kind = "linear"
clients = 2
[training]
samples = 20
lr = 0.05
epochs = 2
[federation]
clients = 5
clients_per_round = 3
[linear]
size = 5
noise = 0.5
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


def figures(name, **choices):
    rows = find_rows("mine", f"table1/{name}")
    return {result.method.name: result for result in run_rows(rows, Choice(**choices))}


@cache
def diabetes_figures():
    """Return the figures of all methods on the diabetes row, which several tests look at."""
    return figures("diabetes")


def test_the_gain_is_over_the_last_returned_model_client_by_client(folder):
    found = diabetes_figures()
    assert found["last-returned"].measures["zest_gain"].value == 0
    gain = found["secant"].measures["zest"].value - found["last-returned"].measures["zest"].value
    assert found["secant"].measures["zest_gain"].value == pytest.approx(gain, abs=1e-6)
    assert found["secant"].measures["zest_gain"].low < gain < found["secant"].measures["zest_gain"].high


def test_a_short_setting_is_what_it_says_and_else_the_rows(folder, monkeypatch):
    seen = []
    original = federations.run_federation
    monkeypatch.setattr(federations, "run_federation", lambda *a, **k: seen.append(k) or original(*a, **k))
    for short in (True, False):
        figures("digits", methods=["last-returned"], short=short)
    assert [(one["rounds"], one["lr"]) for one in seen] == [(3, 0.5), (20, 0.5)]


def test_all_methods_share_one_federation_and_stand_beside_chance(folder, monkeypatch):
    runs = []
    original = federations.run_federation
    monkeypatch.setattr(federations, "run_federation", lambda *a, **k: runs.append(1) or original(*a, **k))
    found = figures("leaf")
    assert len(runs) == 1
    assert set(found["lmra"].measures) == {"zest", "accuracy", "aia", "aia_prior", "sia", "sia_gain"}
    assert (
        set(found["gradient"].measures) == set(found["equations"].measures) == {"aia", "aia_prior", "sia", "sia_gain"}
    )
    assert found["gradient"].measures["sia_gain"].value == 0
    gain = found["equations"].measures["sia"].value - found["gradient"].measures["sia"].value
    assert found["equations"].measures["sia_gain"].value == pytest.approx(gain)
    assert gain > 0
    assert set(found["columns"].measures) == {"aia"}
    assert set(found["inputs"].measures) == {"sia", "sia_gain"}
    assert "sia" not in found["global"].measures
    assert found["optimal"].measures["zest"].value == pytest.approx(1)
    for figure in found.values():
        assert figure.clients == 3
        for measure in figure.measures.values():
            assert -1 <= measure.low <= measure.value <= measure.high <= 1
            assert measure.chance is not None
            assert (measure.n, measure.of) == (3, "clients")
    assert found["lmra"].to_json()["published"] == {"zest": 0.5}
    assert found["lmra"].measures["sia"].chance == pytest.approx(1 / 3)
    assert found["lmra"].to_json()["federation_seconds"] > 0


def test_the_same_seed_gives_the_same_figures(folder):
    first = figures("leaf", methods=["lmra"], clients=2)["lmra"]
    federations._LATEST.clear()
    again = figures("leaf", methods=["lmra"], clients=2)["lmra"]
    assert first.to_json()["ours"] == again.to_json()["ours"]
    assert first.clients == 2


def test_regressions_and_private_statistics(folder):
    found = diabetes_figures()
    assert set(found["secant"].measures) == {"zest", "zest_gain", "mse", "mape", "aia", "aia_gain", "aia_prior"}
    assert found["last-returned"].measures["mse"].value > 0
    assert found["last-returned"].measures["mape"].value > 0
    assert 0.5 <= found["last-returned"].measures["aia"].chance <= 1
    gains = [found[name].measures["aia"].value - found[name].measures["aia_gain"].value for name in found]
    assert gains == pytest.approx([gains[0]] * len(found))  # what the other columns predict
    assert gains[0] >= 0.4


def test_errors_are_a_share_of_the_target_as_it_was_before_it_was_standardised(folder):
    found = figures("diabetes", methods=["last-returned"])["last-returned"]
    values = load("diabetes").targets
    clients = federations.watch_federation(find_rows("mine", "table1/diabetes")[0].setting, 0, silent).clients
    own = [client.targets * values.std() + values.mean() for client in clients]
    assert all(bool(torch.isin(one.round(), values).all()) for one in own)
    blind = torch.stack([((one.mean() - one) / one).abs().mean() for one in own]).mean()
    assert found.measures["mape"].chance == pytest.approx(float(blind), rel=1e-4)
    assert federations.target_scale(Setting(data={"name": "diabetes"})) == (0, 1)


def test_duplicates_are_clients_again(folder):
    path = folder / "digits.toml"
    path.write_text(DIGITS.replace("rounds = 20", "rounds = 1\nduplicates = 4"))
    federation = federations.watch_federation(find_rows("mine", "table1/digits")[0].setting, 0, silent)
    first, rest = federation.clients[:3], federation.clients[3:]
    assert len(rest) == len(federation.observations) - 3 == 4
    assert all(any(torch.equal(one.inputs, own.inputs) for own in first) for one in rest)


def test_pictures_of_classes(folder, tmp_path):
    found = figures("digits", pictures=tmp_path / "pictures")
    assert found["last-returned"].measures["ssim"].chance > 0
    for name in found:
        assert (tmp_path / "pictures" / f"faces-{name}.png").stat().st_size > 100


def test_the_linear_case(folder):
    found = figures("linear")
    assert found["exact"].measures["worst_relative_error"].value < 1e-8
    assert found["exact"].steps == 6
    assert found["few"].measures["relative_error"].value > 1e-4
    assert (
        found["regression"].measures["relative_error"].value
        < found["regression"].measures["relative_bound"].value + 1e-9
    )
    assert found["regression"].steps == 30


def test_rows_that_cannot_be_are_refused(folder):
    path = folder / "leaf.toml"
    path.write_text(LEAF.replace('"zest", "accuracy"', '"zst", "accuracy"'))
    with pytest.raises(UnknownName, match="'zst'; did you mean 'zest'"):
        figures("leaf")
    path.write_text(LEAF.replace("rounds = 24", "rounds = 24\nround = 3"))
    with pytest.raises(UnknownName, match=r"\[federation\].*'round'; did you mean 'rounds'"):
        figures("leaf")
    path.write_text(LEAF.replace('"by_group"', '"by_groups"'))
    with pytest.raises(UnknownName, match="'by_groups'; did you mean 'by_group'"):
        figures("leaf")
    with pytest.raises(InvalidInput, match="There are 10 clients"):
        spread(10, 11)


def test_clients_are_spread_evenly():
    assert spread(10, 10) == list(range(10))
    assert spread(10, 3) == [0, 3, 6]
    digits = load("digits").share(range(50))
    assert len(frequent_classes(digits)) == 4


def test_the_command_line_names_lmras_rows(command):
    assert "lmra" in papers()
    code, printed, _ = command("bench", "lmra", "--list")
    assert code == 0
    for row in (
        "linear/exact",
        "linear/stochastic",
        "table1/adult",
        "table1/leaf",
        "table10/orl-dp",
        "figure2/adult-50",
    ):
        assert row in printed
