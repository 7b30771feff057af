from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.core.errors import CorruptFile
from leakgauge.data import load

from . import builders
from .real import REAL, needs_data


def pixels(dataset) -> np.ndarray:
    values: np.ndarray = (dataset.inputs * 255).round().to(torch.uint8).numpy()
    return values


def write(folder: Path, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_every_layout_gives_the_same(tmp_path: Path) -> None:
    members = builders.cifar10_members()
    records = np.concatenate([builders.cifar_records(2, 1, seed) for seed in range(5)])
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    test = builders.cifar_records(2, 1, 5)
    write(tmp_path / "extracted" / "cifar10", members)
    write(tmp_path / "archive" / "cifar10", {"cifar-10-binary.tar.gz": builders.tar(members)})
    (tmp_path / "npz" / "cifar10").mkdir(parents=True)
    np.savez(
        tmp_path / "npz" / "cifar10" / "subset.npz",
        x_train=images.transpose(0, 2, 3, 1),
        y_train=records[:, 0],
        x_test=test[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
        y_test=test[:, 0],
    )
    for layout in ("extracted", "archive", "npz"):
        dataset = load("cifar10", folder=tmp_path / layout)
        np.testing.assert_array_equal(pixels(dataset), images)
        assert dataset.targets.tolist() == records[:, 0].tolist()
        assert len(load("cifar10", folder=tmp_path / layout, limit=3)) == 3
        np.testing.assert_array_equal(
            pixels(load("cifar10", split="test", folder=tmp_path / layout)).reshape(2, -1), test[:, 1:]
        )


def test_cifar100_labels(tmp_path: Path) -> None:
    records = builders.cifar_records(4, 2)
    records[:, 0], records[:, 1] = [0, 19, 3, 4], [99, 0, 50, 7]
    members = {f"cifar-100-binary/{name}.bin": records.tobytes() for name in ("train", "test")}
    write(tmp_path / "cifar100", {"cifar-100-binary.tar.gz": builders.tar(members)})
    assert load("cifar100", folder=tmp_path).targets.tolist() == [99, 0, 50, 7]
    coarse = load("cifar100", folder=tmp_path, coarse=True)
    assert coarse.targets.tolist() == [0, 19, 3, 4]
    assert coarse.spec.classes == 20


def test_download(offer: Callable[[str, str, bytes], None]) -> None:
    offer("cifar10", "cifar-10-binary.tar.gz", builders.tar(builders.cifar10_members()))
    assert len(load("cifar10")) == 10


def test_corrupt_archives(tmp_path: Path) -> None:
    members = builders.cifar10_members()
    archive = builders.tar(members)
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    without = {name: content for name, content in members.items() if "batch_3" not in name}
    ragged = members | {"cifar-10-batches-bin/data_batch_2.bin": bytes(3074)}
    for content, problem in [
        (archive[:-5000], "cannot be read"),
        (b"not an archive", "cannot be read"),
        (builders.tar(without), "data_batch_3"),
        (builders.tar(ragged), "holds 3074 bytes, expected 3073 bytes for each picture"),
    ]:
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match=problem):
            load("cifar10", folder=tmp_path)


def test_corrupt_extracted_files(tmp_path: Path) -> None:
    members = builders.cifar10_members()
    write(tmp_path / "cifar10", members)
    (tmp_path / "cifar10" / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(CorruptFile, match=r"data_batch_4\.bin: cannot be read"):
        load("cifar10", folder=tmp_path)
    records = builders.cifar_records(2, 1)
    records[0, 0] = 10
    write(tmp_path / "cifar10", {"cifar-10-batches-bin/test_batch.bin": records.tobytes()})
    with pytest.raises(CorruptFile, match="labels run from 1 to 10, expected 0 to 9"):
        load("cifar10", split="test", folder=tmp_path)


def test_npz_with_too_few_labels(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    np.savez(
        tmp_path / "cifar10" / "a.npz",
        x_train=np.zeros((2, 32, 32, 3), np.uint8),
        y_train=np.zeros(1, np.uint8),
    )
    with pytest.raises(CorruptFile, match="differ in number"):
        load("cifar10", folder=tmp_path)
    with pytest.raises(CorruptFile, match="no array 'x_test'"):
        load("cifar10", split="test", folder=tmp_path)


@needs_data
def test_real() -> None:
    train, test = (load("cifar10", split=split, folder=REAL) for split in ("train", "test"))
    assert len(train) >= 2000
    assert len(test) >= 1000
    assert train.targets[:5].tolist() == [6, 9, 9, 4, 1]
    assert test.targets[:5].tolist() == [3, 8, 8, 0, 6]
    for channel in range(3):
        assert abs(float(train.inputs[:, channel].mean()) - train.spec.mean[channel]) < 0.01
        assert abs(float(train.inputs[:, channel].std()) - train.spec.std[channel]) < 0.01


@needs_data
def test_real_cifar100() -> None:
    train, test = (load("cifar100", split=split, folder=REAL) for split in ("train", "test"))
    assert train.targets[:5].tolist() == [19, 29, 0, 11, 1]
    assert test.targets[:5].tolist() == [49, 33, 72, 51, 71]
    coarse = load("cifar100", folder=REAL, coarse=True)
    pairs = set(zip(train.targets.tolist(), coarse.targets.tolist(), strict=True))
    assert len(pairs) == len({fine for fine, _ in pairs})
