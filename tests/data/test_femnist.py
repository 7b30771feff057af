from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakscope.data import by_group, load
from leakscope.errors import CorruptFile, DataNotFound, UnknownName

from .real import REAL, needs_data


def write_npz(path: Path, names: list[str], seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        "x": random.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        "y": np.arange(6, dtype=np.uint8) * 12,
        "writer": np.array([0, 1, 0, 1, 1, 1], np.uint8),
        "writer_ids": np.array(names),
    }
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    return arrays


def test_npz_files(tmp_path: Path) -> None:
    first = write_npz(tmp_path / "femnist" / "a.npz", ["f0001", "f0002"])
    write_npz(tmp_path / "femnist" / "b.npz", ["f0003", "f0004"], seed=1)
    dataset = load("femnist", folder=tmp_path)
    assert dataset.spec.classes == 62
    assert dataset.group_names == ("f0001", "f0002", "f0003", "f0004")
    clients = by_group(dataset)
    assert [len(client) for client in clients] == [2, 4, 2, 4]
    expected = torch.from_numpy(first["x"][[0, 2]])
    assert torch.equal((clients[0].inputs[:, 0] * 255).round().to(torch.uint8), expected)
    assert clients[0].targets.tolist() == [0, 24]
    few = load("femnist", folder=tmp_path, writers=3)
    assert few.group_names == ("f0001", "f0002", "f0003")
    assert torch.equal(few.inputs, dataset.inputs[:8])


def test_leaf_json(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 784), dtype=np.uint8)
    document = {
        "users": ["w1", "w2"],
        "num_samples": [2, 1],
        "user_data": {
            "w1": {"x": (images[:2] / 255).tolist(), "y": [1, 61]},
            "w2": {"x": (images[2:] / 255).tolist(), "y": [0]},
        },
    }
    path = tmp_path / "femnist" / "all_data_0.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document))
    dataset = load("femnist", folder=tmp_path)
    assert torch.equal((dataset.inputs * 255).round().to(torch.uint8).flatten(1), torch.from_numpy(images))
    assert dataset.targets.tolist() == [1, 61, 0]
    assert [client.name for client in by_group(dataset)] == ["w1", "w2"]


@pytest.mark.parametrize(
    "document",
    [
        "{",
        "[]",
        "{}",
        '{"users": ["a"], "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [1]}}}',
        json.dumps({"users": ["a"], "user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}),
        json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1.0] * 784], "y": [62]}}}),
    ],
)
def test_corrupt_json(tmp_path: Path, document: str) -> None:
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "all_data_0.json").write_text(document)
    with pytest.raises(CorruptFile, match=r"all_data_0\.json"):
        load("femnist", folder=tmp_path)


def test_corrupt_npz(tmp_path: Path) -> None:
    arrays = write_npz(tmp_path / "femnist" / "a.npz", ["f0001"])
    with pytest.raises(CorruptFile, match="labels run from 0 to 1; expected 0 to 0"):
        load("femnist", folder=tmp_path)
    np.savez(tmp_path / "femnist" / "a.npz", **(arrays | {"x": arrays["x"].astype(np.float32)}))
    with pytest.raises(CorruptFile, match="x holds float32; expected uint8"):
        load("femnist", folder=tmp_path)


def test_says_how_to_get_it_by_hand(online: None) -> None:
    with pytest.raises(DataNotFound, match=r"no download with a checksum is known\. To get it, run LEAF's own"):
        load("femnist")
    with pytest.raises(UnknownName):
        load("femnist", split="train")


@needs_data
def test_real() -> None:
    dataset = load("femnist", folder=REAL)
    assert dataset.inputs.shape == (97_262, 1, 28, 28)
    assert len(dataset.group_names) == 400
    assert dataset.groups is not None
    assert dataset.groups.bincount().min() >= 95
    assert int(dataset.targets.max()) == 61
    assert len(dataset.targets.unique()) == 62
    assert dataset.inputs[:100].median() == 1.0  # white paper
    assert abs(float(dataset.inputs.mean()) - 0.96424) < 0.01
