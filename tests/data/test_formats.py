from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.core.errors import CorruptFile
from leakgauge.data import formats

from . import builders

IMAGES = np.arange(2 * 28 * 28, dtype=np.int64).reshape(2, 28, 28).astype(np.uint8)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", [np.uint8, np.int32])
def test_idx_round_trip(tmp_path: Path, suffix: str, kind: type) -> None:
    array: np.ndarray = IMAGES.astype(kind) * (1 if kind is np.uint8 else 1000)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(builders.gz(builders.idx(array)) if suffix else builders.idx(array))
    np.testing.assert_array_equal(formats.read_idx(path, 3), array)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("cut.gz", builders.gz(builders.idx(IMAGES))[:-40], "cannot be read"),
        ("plain.gz", b"not gzip at all", "cannot be read"),
        ("empty", b"", "begins with nothing"),
        ("foreign", b"GIF89a......", "begins with 47494638"),
        ("labels", builders.idx(IMAGES[:, 0, 0]), "begins with 00000801"),
        ("short", builders.idx(IMAGES)[:-1], "holds 1583 bytes, expected 1584"),
        ("header", builders.idx(IMAGES)[:7], "holds 7 bytes"),
    ],
)
def test_corrupt_idx(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorruptFile, match=problem) as caught:
        formats.read_idx(tmp_path / name, 3)
    assert name in str(caught.value)
    assert "expected" in str(caught.value)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=IMAGES, other=np.zeros(3))
    np.testing.assert_array_equal(formats.read_npz(path, {"x": (None, 28, 28)})["x"], IMAGES)
    with pytest.raises(CorruptFile, match=r"no array 'y' \(it has x, other\)"):
        formats.read_npz(path, {"x": (None, 28, 28), "y": (None,)})
    with pytest.raises(CorruptFile, match=r"x has the shape 2 x 28 x 28, expected any x 32 x 32"):
        formats.read_npz(path, {"x": (None, 32, 32)})
    with pytest.raises(CorruptFile, match="x has the shape"):
        formats.read_npz(path, {"x": (None,)})


def test_npz_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(CorruptFile, match="Object arrays cannot be loaded"):
        formats.read_npz(path, {"x": (None,)})


@pytest.mark.parametrize("content", [b"", b"rubbish", b"PK\x03\x04 rubbish"])
def test_foreign_npz(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"data\.npz: cannot be read"):
        formats.read_npz(path, {"x": (None,)})


def test_cut_and_flipped_npz(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptFile, match="cannot be read"):
        formats.read_npz(path, {"x": (None, 28, 28)})
    path.write_bytes(content[:2000] + bytes(64) + content[2064:])
    with pytest.raises(CorruptFile, match="cannot be read"):
        formats.read_npz(path, {"x": (None, 28, 28)})


def test_single_array_is_not_npz(tmp_path: Path) -> None:
    with (tmp_path / "data.npz").open("wb") as stream:
        np.save(stream, IMAGES)
    with pytest.raises(CorruptFile, match="is a single array"):
        formats.read_npz(tmp_path / "data.npz", {"x": (None,)})


def test_pgm() -> None:
    image = IMAGES[0, :5, :3]
    np.testing.assert_array_equal(formats.read_pgm(builders.pgm(image), Path("a.pgm")), image)
    commented = b"P5\n# made by hand\n3 5\n255\n" + image.tobytes()
    np.testing.assert_array_equal(formats.read_pgm(commented, Path("a.pgm")), image)
    with pytest.raises(CorruptFile, match="has 14 pixels, expected 3 x 5"):
        formats.read_pgm(builders.pgm(image)[:-1], Path("a.pgm"))
    with pytest.raises(CorruptFile, match="expected a binary PGM"):
        formats.read_pgm(b"P2\n3 5\n255\n1 2 3", Path("a.pgm"))


def test_labels_are_checked() -> None:
    path = Path("labels")
    assert formats.require_labels(path, np.array([0, 2], np.uint8), 2, 3).tolist() == [0, 2]
    for labels in (np.array([0, 3]), np.array([-1, 0]), np.array([0]), np.array([0.0, 1.0])):
        with pytest.raises(CorruptFile):
            formats.require_labels(path, labels, 2, 3)


def test_pixels_lie_in_the_unit_interval() -> None:
    pixels = formats.to_pixels(np.array([[[0, 255]]], np.uint8))
    assert pixels.shape == (1, 1, 1, 2)
    assert torch.equal(pixels.flatten(), torch.tensor([0.0, 1.0]))
