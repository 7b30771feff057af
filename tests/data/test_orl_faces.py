from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.core.errors import CorruptFile
from leakgauge.data import load, orl_lmra

from . import builders
from .real import REAL, needs_data


def test_every_layout_gives_the_same(tmp_path: Path) -> None:
    images = builders.faces()
    for layout in ("npz", "zip", "zip with a folder", "extracted"):
        (tmp_path / layout / "orl_faces").mkdir(parents=True)
    labels = np.repeat(np.arange(40, dtype=np.uint8), 10)
    np.savez(tmp_path / "npz" / "orl_faces" / "orl_faces.npz", x=images, y=labels)
    (tmp_path / "zip" / "orl_faces" / "att_faces.zip").write_bytes(builders.faces_zip(images))
    (tmp_path / "zip with a folder" / "orl_faces" / "att_faces.zip").write_bytes(
        builders.faces_zip(images, prefix="orl_faces/")
    )
    for row, image in enumerate(images):
        path = tmp_path / "extracted" / "orl_faces" / f"s{row // 10 + 1}" / f"{row % 10 + 1}.pgm"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(builders.pgm(image))
    for layout in ("npz", "zip", "zip with a folder", "extracted"):
        dataset = load("orl_faces", folder=tmp_path / layout, full_size=True)
        assert torch.equal((dataset.inputs[:, 0] * 255).round().to(torch.uint8), torch.from_numpy(images))
        assert dataset.targets.tolist() == labels.tolist()
        assert dataset.groups is not None
        assert dataset.group_names[int(dataset.groups[-1])] == "s40"


def test_reduced_size_averages(tmp_path: Path) -> None:
    (tmp_path / "orl_faces").mkdir()
    images = np.full((400, 112, 92), 200, np.uint8)
    images[:, :, 46:] = 100
    (tmp_path / "orl_faces" / "att_faces.zip").write_bytes(builders.faces_zip(images))
    inputs = load("orl_faces", folder=tmp_path).inputs
    assert inputs.shape == (400, 1, 80, 70)
    assert torch.allclose(inputs[..., :34], torch.tensor(200 / 255), atol=1e-5)
    assert torch.allclose(inputs[..., 36:], torch.tensor(100 / 255), atol=1e-5)


def test_download(offer: Callable[[str, str, bytes], None]) -> None:
    offer("orl_faces", "att_faces.zip", builders.faces_zip(builders.faces()))
    assert len(load("orl_faces")) == 400


def test_corrupt(tmp_path: Path) -> None:
    (tmp_path / "orl_faces").mkdir()
    path = tmp_path / "orl_faces" / "att_faces.zip"
    whole = builders.faces_zip(builders.faces())
    small = builders.faces_zip(np.zeros((400, 64, 64), np.uint8))
    few = builders.faces_zip(builders.faces()[:390])
    for content, problem in [
        (whole[: len(whole) // 2], "cannot be read"),
        (few, r"s40/1\.pgm"),
        (small, r"s1/1\.pgm is 64 x 64, expected 112 x 92"),
    ]:
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match=problem):
            load("orl_faces", folder=tmp_path)


def test_missing_picture(tmp_path: Path) -> None:
    (tmp_path / "orl_faces" / "s1").mkdir(parents=True)
    (tmp_path / "orl_faces" / "s1" / "1.pgm").write_bytes(builders.pgm(builders.faces()[0]))
    with pytest.raises(CorruptFile, match=r"2\.pgm: cannot be read"):
        load("orl_faces", folder=tmp_path)


@needs_data
def test_real() -> None:
    full, reduced = load("orl_faces", folder=REAL, full_size=True), load("orl_faces", folder=REAL)
    assert full.inputs.shape == (400, 1, 112, 92)
    assert len(full.inputs.flatten(1).unique(dim=0)) == 400
    assert full.targets.bincount().tolist() == [10] * 40
    assert abs(float(full.inputs.mean() - reduced.inputs.mean())) < 1e-3
    assert [len(client) for client in orl_lmra(reduced)] == [184] * 4 + [148] * 5 + [184]
