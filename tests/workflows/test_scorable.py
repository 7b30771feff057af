"""A problem of scoring is found before any attack, in every command."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import leakgauge as lg
from leakgauge.core.errors import InvalidInput
from leakgauge.core.truth import Truth
from leakgauge.evaluation import ruler
from leakgauge.workflows.audit.plan import read_audit
from leakgauge.workflows.frontier_plan import read_frontier
from leakgauge.workflows.scorable import check_scorable, not_scorable

SERIES = lg.DataSpec((6, 2), 3, bounded=False, time_axis=0)
FRONTIER = {"clients": 2, "federation": 2, "federation_samples": 5, "test": 5}


def truth_of(spec=SERIES, count=2):
    samples = torch.rand(count, *spec.shape, generator=torch.Generator().manual_seed(0))
    return Truth(samples, torch.zeros(count, dtype=torch.long), spec)


@pytest.fixture
def broken(monkeypatch):
    def fails(*_):
        raise IndexError("index 6 is out of bounds\nof a row")

    monkeypatch.setattr(ruler, "exact_rows", fails)


@pytest.fixture
def document(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(40, 6, 2)), y=rng.integers(0, 3, 40))
    return {
        "model": {"name": "mlp", "options": {"hidden": [4]}},
        "data": {"npz": str(tmp_path / "mine.npz")},
        "training": {"sends": "gradient", "samples": 1},
    }


@pytest.mark.parametrize("spec", [SERIES, lg.DataSpec((3,), 3, bounded=False), lg.DataSpec((1, 4, 4), 3)])
def test_samples_of_every_kind_can_be_scored(spec):
    check_scorable(truth_of(spec), {}, threshold=20.0)


def test_images_with_reference_samples_are_scored_without_them():
    image = truth_of(lg.DataSpec((1, 4, 4), 3))
    check_scorable(replace(image, reference_inputs=image.inputs, reference_targets=image.targets), {})


def test_the_error_is_one_sentence_about_the_samples(broken):
    with pytest.raises(InvalidInput, match=r"shape \(6, 2\).*no attack was started.*out of bounds") as caught:
        check_scorable(truth_of(), {})
    assert "\n" not in str(caught.value)


def test_captures_of_the_same_kind_are_checked_once(broken):
    image = truth_of(lg.DataSpec((1, 4, 4), 3))
    problems = not_scorable({"a": truth_of(), "b": image, "c": truth_of()}, {"a": {}, "b": {}, "c": {}})
    assert list(problems) == ["a", "c"]


def test_an_audit_is_refused_before_any_attack(document, broken):
    with pytest.raises(InvalidInput, match="cannot be scored"):
        read_audit(document, "audit.toml")


def test_a_frontier_is_refused_before_any_attack(document, broken):
    with pytest.raises(InvalidInput, match="cannot be scored"):
        read_frontier(document | {"defence": [{"chain": []}], "frontier": FRONTIER}, "frontier.toml")


def test_captures_are_refused_before_any_attack(tmp_path, document, broken):
    data = lg.data.from_npz(document["data"]["npz"])
    model = lg.models.build("mlp", shape=[6, 2], classes=3, hidden=[4], seed=0)
    observation, truth = lg.fedsgd(model, data.share([0]))
    lg.save(observation, tmp_path / "captures" / "client-0.safetensors")
    np.savez(tmp_path / "own.npz", x=truth.inputs.numpy(), y=truth.targets.numpy())
    with pytest.raises(InvalidInput, match="cannot be scored"):
        lg.attack(tmp_path / "captures", output=tmp_path / "out", data=tmp_path / "own.npz", options={"steps": 5})


@pytest.mark.parametrize("spec", [SERIES, lg.DataSpec((2, 6), 3, bounded=False, time_axis=1)])
def test_captures_of_series_are_scored_and_drawn(tmp_path, spec):
    truth = truth_of(spec)
    model = lg.models.build("mlp", shape=list(spec.shape), classes=3, hidden=[4], seed=0)
    clients = lg.data.Dataset(truth.inputs, truth.targets, spec, name="clients")
    observation, _ = lg.fedsgd(model, clients.share([0]))
    lg.save(observation, tmp_path / "captures" / "client-0.safetensors")
    np.savez(tmp_path / "own.npz", x=truth.inputs[:1].numpy(), y=truth.targets[:1].numpy())
    place = {"output": tmp_path / "out", "data": tmp_path / "own.npz"}
    result = lg.attack(tmp_path / "captures", **place, options={"steps": 5}, engine="in-process")
    assert result.attacked[0].capture.data == spec
    assert {"features", "mse"} <= set(result.attacked[0].score)
    assert (tmp_path / "out" / "client-0.png").exists()
