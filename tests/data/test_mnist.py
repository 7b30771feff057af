from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.data import by_group, load

from . import builders
from .real import REAL, needs_data


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_folder(tmp_path: Path, suffix: str, split: str) -> None:
    images = builders.write_mnist(tmp_path / "mnist", suffix=suffix)
    dataset = load("mnist", split=split, folder=tmp_path)
    assert torch.equal((dataset.inputs[:, 0] * 255).round().to(torch.uint8), torch.from_numpy(images))
    assert dataset.targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(load("mnist", folder=tmp_path, limit=2)) == 2


def test_writers_from_either_file(tmp_path: Path) -> None:
    builders.write_mnist(tmp_path / "mnist")
    writers = np.array([7, 7, 3, 3, 3, 9], np.int32)
    table = np.zeros((9, 8), np.int32)
    table[:6, 2] = writers
    (tmp_path / "mnist" / "qmnist-test-labels-idx2-int.gz").write_bytes(builders.gz(builders.idx(table)))
    from_table = load("mnist", split="test", folder=tmp_path, by_writer=True)
    np.savez(tmp_path / "mnist" / "qmnist_writers.npz", test_writer=writers.astype(np.int16))
    from_npz = load("mnist", split="test", folder=tmp_path, by_writer=True)
    for dataset in (from_table, from_npz):
        assert [(client.name, len(client)) for client in by_group(dataset)] == [("3", 3), ("7", 2), ("9", 1)]


def test_writers_of_other_digits(tmp_path: Path) -> None:
    builders.write_mnist(tmp_path / "mnist")
    np.savez(tmp_path / "mnist" / "qmnist_writers.npz", train_writer=np.zeros(5, np.int16))
    with pytest.raises(CorruptFile, match="writers of 5 digits, expected 6 digits"):
        load("mnist", folder=tmp_path, by_writer=True)


def test_download(tmp_path: Path, offer: Callable[[str, str, bytes], None]) -> None:
    builders.write_mnist(tmp_path / "written")
    for path in (tmp_path / "written").iterdir():
        offer("mnist", path.name, path.read_bytes())
    assert len(load("mnist")) == 6
    assert sorted(path.name for path in (tmp_path / "cache" / "mnist").iterdir()) == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ]


def test_corrupt_files(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    builders.write_mnist(folder, suffix="")
    (folder / "train-labels-idx1-ubyte").write_bytes(builders.idx(np.zeros(5, np.uint8)))
    with pytest.raises(CorruptFile, match="5 labels for 6 samples"):
        load("mnist", folder=tmp_path)
    (folder / "train-images-idx3-ubyte").write_bytes(builders.idx(np.zeros((5, 8, 8), np.uint8)))
    with pytest.raises(CorruptFile, match=r"train-images-idx3-ubyte: images are 8 x 8, expected 28 x 28"):
        load("mnist", folder=tmp_path)


def test_bad_limit(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="limit must be a whole number of at least 1"):
        load("mnist", limit=0)


@needs_data
def test_real() -> None:
    train, test = (load("mnist", split=split, folder=REAL, by_writer=True) for split in ("train", "test"))
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.targets[:5].tolist() == [5, 0, 4, 1, 9]
    assert test.targets[:5].tolist() == [7, 2, 1, 0, 4]
    assert (len(train.group_names), len(test.group_names)) == (539, 297)
    assert len(by_group(train, minimum=50)) == 537
    assert abs(float(train.inputs.mean()) - train.spec.mean[0]) < 1e-4
    assert abs(float(train.inputs.std()) - train.spec.std[0]) < 1e-4
    for dataset, digest in (
        (train, "6bbc9ace898e44ae57da46a324031adb"),
        (test, "2646ac647ad5339dbf082846283269ea"),
    ):
        content = builders.idx((dataset.inputs[:, 0] * 255).round().to(torch.uint8).numpy())
        assert hashlib.md5(content).hexdigest() == digest
