"""A set-up from a document: what it makes, and that mistakes are named before any work starts."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge import defences
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from leakgauge.workflows.scenario_document import read_scenario

DOCUMENT = {
    "seed": 3,
    "model": {"name": "mlp", "options": {"shape": [1, 8, 8], "classes": 10, "hidden": [8]}},
    "data": {"name": "digits"},
    "training": {"samples": 4, "lr": 0.1, "epochs": 2, "batch_size": 2},
    "attacker": {"granted": ["labels"], "hidden": ["momentum"]},
}


def setup(**changes):
    return read_scenario(copy.deepcopy(DOCUMENT) | changes, "audit.toml")


def test_clients_have_samples_and_networks_of_their_own():
    one = setup()
    first, second = one.share(0), one.share(1)
    assert len(first) == len(second) == 4
    assert not set(first.rows.tolist()) & set(second.rows.tolist())
    weights = [flatten(dict(one.network(index).named_parameters())) for index in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_network_that_was_trained_is_the_same_for_all_clients_and_better_than_before():
    changes = {
        "model": DOCUMENT["model"] | {"trained_rounds": 8},
        "training": DOCUMENT["training"] | {"samples": 50, "batch_size": 10, "lr": 0.05},
    }
    one = setup(**changes)
    weights = [flatten(dict(one.network(index).named_parameters())) for index in (0, 1)]
    assert torch.equal(*weights)
    again = setup(**changes)
    assert torch.equal(weights[0], flatten(dict(again.network().named_parameters())))
    share = one.share(0)
    losses = []
    for network in (setup().network(), one.network()):
        with torch.no_grad():
            losses.append(
                float(torch.nn.functional.cross_entropy(network(share.spec.normalise(share.inputs)), share.targets))
            )
    assert losses[1] < 0.95 * losses[0]
    observation, _ = one.observe(1)
    assert torch.equal(weights[0], flatten(observation.sent))


@pytest.mark.parametrize("sends", ["weights", "gradient"])
def test_the_server_sees_what_the_recipe_says(sends):
    observation, truth = setup(training=DOCUMENT["training"] | {"sends": sends}).observe(1)
    assert observation.kind == sends
    assert observation.labels is not None
    assert observation.defences is None
    assert observation.training.momentum is None
    assert len(truth) == 4


RECIPE = {
    "optimiser": "adamw", "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1, "schedule": "cosine",
    "clip_norm": 1.0, "proximal": 0.1, "label_smoothing": 0.1, "accumulation": 2,
}  # fmt: skip


def test_the_client_follows_the_recipe_of_the_document():
    observation, _ = setup(training=DOCUMENT["training"] | {"momentum": 0} | RECIPE).observe(1)
    for name, value in RECIPE.items():
        assert getattr(observation.training, name) == (tuple(value) if isinstance(value, list) else value)
    sentence = observation.threat_model()[1]
    assert "optimiser adamw, betas (0.8, 0.99), eps 1e-06, schedule cosine, clip_norm 1.0" in sentence
    assert "momentum" not in sentence


def test_an_attacker_can_know_the_defences():
    observation, _ = setup().observe(0, (defences.GaussianNoise(0.1),), knows_defence=True)
    assert observation.defences == ("GaussianNoise(on='samples', sigma=0.1)",)


def test_sums_are_of_other_clients_each():
    one = setup(attacker={})
    sums = [one.observe(index, (defences.SecureAggregation(3),)) for index in (0, 1)]
    assert [len(truth) for _, truth in sums] == [12, 12]
    rows = [{tuple(sample.flatten().tolist()) for sample in truth.inputs} for _, truth in sums]
    assert not rows[0] & rows[1]


def test_data_of_every_kind(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 8, 8), np.uint8), y=np.arange(20) % 10)
    (tmp_path / "a.csv").write_text("x,z,y\n" + "1,2,0\n3,4,1\n" * 9)
    for label in ("a", "b"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "pictures" / label / "1.png")
    (tmp_path / "ours.py").write_text(
        "from leakgauge.data import load\n"
        "def make(rows=5): return load('digits').share(range(rows))\n"
        "def none(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    sizes = {
        "npz": ({"npz": "a.npz"}, 20),
        "csv": ({"csv": "a.csv", "options": {"target": "y"}}, 18),
        "images": ({"images": "pictures", "options": {"grey": True}}, 2),
        "factory": ({"factory": "ours:make", "options": {"rows": 7}}, 7),
    }
    for table, size in sizes.values():
        assert len(setup(data=table).dataset) == size
    with pytest.raises(InvalidInput, match=r"must return a leakgauge.Dataset, not int"):
        _ = setup(data={"factory": "ours:none"}).dataset
    with pytest.raises(InvalidInput, match="csv needs the option target"):
        _ = setup(data={"csv": "a.csv"}).dataset


def test_more_clients_than_samples_are_refused():
    with pytest.raises(InvalidInput, match="too few for client 2000"):
        setup().share(2000)


def test_a_version_shares_the_data_and_the_trained_model():
    whole = setup(model=DOCUMENT["model"] | {"trained_rounds": 2, "trained_samples": 20})
    version = whole.version(granted=[], samples=1, epochs=7)
    assert version.dataset is whole.dataset
    assert (version.samples, version.training["epochs"], version.attacker["granted"]) == (1, 7, [])
    assert torch.equal(*(flatten(dict(one.network().named_parameters())) for one in (whole, version)))
    assert "accuracy" in whole.model_state
    assert "random weights" in setup().model_state
