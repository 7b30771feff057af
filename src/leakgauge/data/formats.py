"""Readers of the file formats that datasets come in. None of them unpickles.

Each turns whatever is wrong with a file into :class:`~leakgauge.core.errors.CorruptFile`, which names the file,
the problem and what was expected.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakgauge.core.errors import CorruptFile

Bytes = NDArray[np.uint8]

_IDX_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}
_FAULTS = (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile, tarfile.TarError)


def corrupt(path: Path, problem: str, expected: str) -> CorruptFile:
    """The error for a file that does not hold what it should."""
    return CorruptFile(f"{path}: {problem}; expected {expected}. Replace the file, or remove it to look elsewhere.")


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn every way in which reading a file fails into one sentence."""
    try:
        yield
    except _FAULTS as error:
        raise corrupt(path, f"cannot be read ({str(error) or type(error).__name__})", expected) from error


def read_bytes(path: Path, expected: str) -> bytes:
    """A file's content, unzipped when its name ends with .gz."""
    with reading(path, expected):
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return stream.read()
        return path.read_bytes()


def read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    """An array of bytes or 32-bit integers in MNIST's idx format, which may be gzipped."""
    expected = f"an idx file with {dimensions} dimensions"
    content = read_bytes(path, expected)
    kind = _IDX_TYPES.get(content[2]) if len(content) >= 4 else None
    if kind is None or content[:2] != b"\x00\x00" or content[3] != dimensions:
        raise corrupt(path, f"begins with {content[:4].hex() or 'nothing'}", expected)
    header = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(content) != header + size:
        raise corrupt(path, f"holds {len(content)} bytes", f"{header + size} for the shape {shape} it announces")
    return np.frombuffer(content, kind, offset=header).reshape(shape)


def read_npz(path: Path, shapes: Mapping[str, tuple[int | None, ...]]) -> dict[str, NDArray[Any]]:
    """The named arrays of an npz file; ``None`` in a shape stands for any size."""
    expected = f"an npz file of plain arrays named {', '.join(shapes)}"
    with reading(path, expected), path.open("rb") as stream:
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise corrupt(path, "is a single array", expected)
        with archive:
            missing = [name for name in shapes if name not in archive]
            if missing:
                raise corrupt(path, f"has no array {missing[0]!r} (it has {', '.join(archive) or 'none'})", expected)
            arrays = {name: archive[name] for name in shapes}
    for name, shape in shapes.items():
        actual = arrays[name].shape
        if len(actual) != len(shape) or any(want not in (None, have) for want, have in zip(shape, actual, strict=True)):
            wanted = " x ".join("any" if size is None else str(size) for size in shape)
            raise corrupt(path, f"{name} has the shape {' x '.join(map(str, actual))}", wanted)
    return arrays


def read_pgm(content: bytes, path: Path) -> Bytes:
    """A binary grey picture (PGM, P5) with 256 levels."""
    header = re.match(rb"P5\s+(?:#[^\n]*\n\s*)*(\d+)\s+(\d+)\s+255\s", content)
    if header is None:
        raise corrupt(path, f"begins with {content[:12]!r}", "a binary PGM picture (P5, 255 levels)")
    width, height = int(header[1]), int(header[2])
    if len(content) - header.end() != width * height:
        raise corrupt(path, f"has {len(content) - header.end()} pixels", f"{width} x {height}")
    return np.frombuffer(content, np.uint8, offset=header.end()).reshape(height, width)


def require_bytes(path: Path, name: str, array: NDArray[Any]) -> Bytes:
    """The array, if its values are bytes."""
    if array.dtype != np.uint8:
        raise corrupt(path, f"{name} holds {array.dtype}", "uint8")
    return array


def require_labels(path: Path, labels: NDArray[Any], samples: int, classes: int) -> Tensor:
    """Labels as a tensor, if there is one for each sample and each names a class."""
    if labels.dtype.kind not in "iu":
        raise corrupt(path, f"labels are {labels.dtype}", "whole numbers")
    if labels.shape != (samples,):
        raise corrupt(path, f"there are {labels.size} labels for {samples} samples", "one each")
    if samples and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise corrupt(path, f"labels run from {labels.min()} to {labels.max()}", f"0 to {classes - 1}")
    return torch.from_numpy(labels.astype(np.int64))


def to_pixels(images: Bytes) -> Tensor:
    """Grey (N, H, W) or coloured (N, C, H, W) bytes as floats in [0, 1] with a channel axis."""
    pixels = torch.from_numpy(np.ascontiguousarray(images).astype(np.float32)).div_(255)
    return pixels if pixels.ndim == 4 else pixels.unsqueeze(1)
