from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakgauge.core.errors import CorruptFile
from leakgauge.data import load

from .real import REAL, needs_data


def arrays(samples: int = 3) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for split in ("train", "val", "test"):
        content[f"{split}_images"] = np.full((samples, 28, 28), 255, np.uint8)
        content[f"{split}_labels"] = np.arange(samples, dtype=np.uint8)[:, None] % 2
    return content


@pytest.mark.parametrize("name", ["pneumoniamnist.npz", "pneumoniamnist_28.npz"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_folder(tmp_path: Path, name: str, split: str) -> None:
    (tmp_path / "pneumoniamnist").mkdir()
    np.savez(tmp_path / "pneumoniamnist" / name, **arrays())
    dataset = load("pneumoniamnist", split=split, folder=tmp_path)
    assert dataset.inputs.shape == (3, 1, 28, 28)
    assert dataset.inputs.min() == 1
    assert dataset.targets.tolist() == [0, 1, 0]


def test_corrupt(tmp_path: Path) -> None:
    (tmp_path / "pneumoniamnist").mkdir()
    path = tmp_path / "pneumoniamnist" / "pneumoniamnist.npz"
    np.savez(path, **(arrays() | {"train_labels": np.zeros(3, np.uint8)}))
    with pytest.raises(CorruptFile, match="train_labels has the shape 3, expected any x 1"):
        load("pneumoniamnist", folder=tmp_path)
    np.savez(path, **(arrays() | {"train_labels": np.full((3, 1), 2, np.uint8)}))
    with pytest.raises(CorruptFile, match="labels run from 2 to 2"):
        load("pneumoniamnist", folder=tmp_path)


@needs_data
def test_real() -> None:
    counts = {
        split: load("pneumoniamnist", split=split, folder=REAL).targets.bincount().tolist()
        for split in ("train", "val", "test")
    }
    assert counts["val"] == [135, 389]
    assert counts["test"] == [234, 390]
    assert counts["train"] in ([388, 3494], [1214, 3494])  # a subset of the normals, or the official file
