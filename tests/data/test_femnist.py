from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from leakgauge.core.errors import CorruptFile, MissingExtra, UnknownName
from leakgauge.data import by_group, load

from .builders import tar
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
    with pytest.raises(CorruptFile, match="labels run from 0 to 1, expected 0 to 0"):
        load("femnist", folder=tmp_path)
    np.savez(tmp_path / "femnist" / "a.npz", **(arrays | {"x": arrays["x"].astype(np.float32)}))
    with pytest.raises(CorruptFile, match="x holds float32, expected uint8"):
        load("femnist", folder=tmp_path)


def hdf5(writers: dict[str, list[int]], seed: int = 0) -> bytes:
    """Return a file like TensorFlow Federated's, with given labels of each writer and random pixels."""
    buffer, random = io.BytesIO(), np.random.default_rng(seed)
    with h5py.File(buffer, "w") as file:
        for name, labels in writers.items():
            group = file.create_group(f"examples/{name}")
            group["pixels"] = random.integers(0, 256, (len(labels), 28, 28)).astype(np.float32) / np.float32(255)
            group["label"] = np.array(labels, np.int32)
    return buffer.getvalue()


MEMBERS = {
    "fed_emnist_train.h5": hdf5({"f0001_41": [1, 2], "f0002_10": [61]}),
    "fed_emnist_test.h5": hdf5({"f0001_41": [3], "f0002_10": [4, 5]}, seed=1),
}


def test_hdf5_files_of_one_writer_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "femnist").mkdir()
    for name, content in MEMBERS.items():
        (tmp_path / "femnist" / name).write_bytes(content)
    dataset = load("femnist", folder=tmp_path)
    assert dataset.group_names == ("f0001_41", "f0002_10")
    # The files are read in the order of their names, test before train.
    assert [client.targets.tolist() for client in by_group(dataset)] == [[3, 1, 2], [4, 5, 61]]
    assert load("femnist", folder=tmp_path, writers=1).targets.tolist() == [3, 1, 2]


def test_download_is_unpacked_once(offer: Callable[[str, str, bytes], None], monkeypatch: pytest.MonkeyPatch) -> None:
    offer("femnist", "fed_emnist.tar.bz2", tar(MEMBERS, "w:bz2"))
    dataset = load("femnist")
    assert [client.targets.tolist() for client in by_group(dataset)] == [[1, 2, 3], [61, 4, 5]]
    monkeypatch.setattr(tarfile, "open", lambda *_: pytest.fail("unpacked again"))
    assert torch.equal(load("femnist").inputs, dataset.inputs)


@pytest.mark.parametrize(
    "content",
    [
        b"not an archive",
        tar({"other.h5": b""}, "w:bz2"),
        tar({**MEMBERS, "fed_emnist_test.h5": b"not HDF5"}, "w:bz2"),
        tar({**MEMBERS, "fed_emnist_test.h5": hdf5({"f0001_41": [62]})}, "w:bz2"),
    ],
)
def test_corrupt_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setenv("LEAKGAUGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "fed_emnist.tar.bz2").write_bytes(content)
    with pytest.raises(CorruptFile, match="fed_emnist"):
        load("femnist", folder=tmp_path)


def test_without_h5py_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "fed_emnist_train.h5").write_bytes(MEMBERS["fed_emnist_train.h5"])
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"\.\[femnist\]"):
        load("femnist", folder=tmp_path)


def test_there_are_no_splits() -> None:
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
