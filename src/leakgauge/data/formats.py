"""Functions that read the file formats of datasets. No function unpickles a file.

If a file does not have the expected format or content, the functions raise :class:`~leakgauge.core.errors.CorruptFile`.
The error message names the file, what is wrong and the expected content.
"""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakgauge.core.errors import CorruptFile, LeakgaugeError, printable
from leakgauge.core.files import machine_memory, regular_file

Bytes = NDArray[np.uint8]

_IDX_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def corrupt(path: Path, problem: str, expected: str) -> CorruptFile:
    """Return the error for a file that does not hold the expected content.

    Args:
        path: The path of the file.
        problem: What is wrong with the file, such as "has no rows". It follows the path in the error message.
        expected: A description of the expected content, for the error message.
    """
    return CorruptFile(
        f"{path}: {problem}, expected {expected}. Replace the file, or remove it so that other places are tried."
    )


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Convert errors while a file is read in the ``with`` block to :class:`~leakgauge.core.errors.CorruptFile`.

    Args:
        path: The path of the file.
        expected: A description of the expected content, for the error message.
    """
    try:
        yield
    except LeakgaugeError:
        raise
    except Exception as error:  # the libraries that read files raise errors of many kinds on files that are not theirs
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise corrupt(path, f"cannot be read ({printable(cause)})", expected) from error


def read_bytes(path: Path, expected: str) -> bytes:
    """Return the content of a file, decompressed if its name ends with .gz.

    Args:
        path: The path of the file.
        expected: A description of the expected content, for the error message.
    """
    regular_file(path)
    with reading(path, expected):
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                content = stream.read(_most_bytes() + 1)
            check_unpacked(path, len(content))
            return content
        return path.read_bytes()


def check_unpacked(path: Path, size: int) -> None:
    """Raise an error if the unpacked content of a file would fill the memory of the machine.

    Args:
        path: The path of the file, for the error message.
        size: The size of the unpacked content in bytes.
    """
    if size > _most_bytes():
        raise corrupt(
            path,
            f"holds more than {_most_bytes() / 2**30:.1f} GiB when it is unpacked",
            "content that fits into half of this machine's memory",
        )


def _most_bytes() -> int:
    return machine_memory() // 2


def open_npz(stream: IO[bytes], path: Path, names: Collection[str], expected: str) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an npz file. A missing array raises an error.

    Args:
        stream: The opened file.
        path: The path of the file, for error messages.
        names: The names of the arrays.
        expected: A description of the expected content, for error messages.
    """
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as members:
            check_unpacked(path, sum(item.file_size for item in members.infolist()))
    stream.seek(0)
    archive = np.load(stream, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise corrupt(path, "is a single array", expected)
    with archive:
        missing = [name for name in names if name not in archive]
        if missing:
            raise corrupt(path, f"has no array {missing[0]!r} (it has {', '.join(archive) or 'none'})", expected)
        return {name: archive[name] for name in names}


def read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    """Read a file in MNIST's idx format, which holds an array of bytes or of 32-bit integers.

    Args:
        path: The path of the file, which may be compressed with gzip.
        dimensions: The expected number of dimensions.
    """
    expected = f"an idx file with {dimensions} dimensions"
    content = read_bytes(path, expected)
    kind = _IDX_TYPES.get(content[2]) if len(content) >= 4 else None
    if kind is None or content[:2] != b"\x00\x00" or content[3] != dimensions:
        raise corrupt(path, f"begins with {content[:4].hex() or 'nothing'}", expected)
    header = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(content) != header + size:
        raise corrupt(path, f"holds {len(content)} bytes", f"{header + size} for the shape {shape} in its header")
    return np.frombuffer(content, kind, offset=header).reshape(shape)


def read_npz(path: Path, shapes: Mapping[str, tuple[int | None, ...]]) -> dict[str, NDArray[Any]]:
    """Read the named arrays of an npz file, and check their shapes.

    Args:
        path: The path of the file.
        shapes: A dictionary from the name of each array to its expected shape. ``None`` in a shape stands for any size.
    """
    expected = f"an npz file of plain arrays named {', '.join(shapes)}"
    regular_file(path)
    with reading(path, expected), path.open("rb") as stream:
        arrays = open_npz(stream, path, shapes.keys(), expected)
    for name, shape in shapes.items():
        actual = arrays[name].shape
        fits = len(actual) == len(shape) and all(
            size in (None, actual_size) for size, actual_size in zip(shape, actual, strict=True)
        )
        if not fits:
            shape_text = " x ".join("any" if size is None else str(size) for size in shape)
            raise corrupt(path, f"{name} has the shape {' x '.join(map(str, actual))}", shape_text)
    return arrays


def read_pgm(content: bytes, path: Path) -> Bytes:
    """Decode a binary PGM file (P5), which is a grey picture with 256 levels, to an array.

    Args:
        content: The content of the file.
        path: The path of the file, for the error message.
    """
    header = re.match(rb"P5\s+(?:#[^\n]*\n\s*)*(\d+)\s+(\d+)\s+255\s", content)
    if header is None:
        raise corrupt(path, f"begins with {content[:12]!r}", "a binary PGM picture (P5, 255 levels)")
    width, height = int(header[1]), int(header[2])
    if len(content) - header.end() != width * height:
        raise corrupt(path, f"has {len(content) - header.end()} pixels", f"{width} x {height}")
    return np.frombuffer(content, np.uint8, offset=header.end()).reshape(height, width)


def require_bytes(path: Path, name: str, array: NDArray[Any]) -> Bytes:
    """Return the array if its values are bytes, and raise an error otherwise.

    Args:
        path: The path of the file, for the error message.
        name: The name of the array, for the error message.
        array: The array to check.
    """
    if array.dtype != np.uint8:
        raise corrupt(path, f"{name} holds {array.dtype}", "uint8")
    return array


def require_labels(path: Path, labels: NDArray[Any], samples: int, classes: int) -> Tensor:
    """Return the labels as a tensor, and raise an error unless there is one valid label for each sample.

    Args:
        path: The path of the file, for the error message.
        labels: The labels to check.
        samples: The number of samples.
        classes: The number of classes. Valid labels are 0 to ``classes - 1``.
    """
    if labels.dtype.kind not in "iu":
        raise corrupt(path, f"labels are {labels.dtype}", "whole numbers")
    if labels.shape != (samples,):
        raise corrupt(path, f"there are {labels.size} labels for {samples} samples", "one for each")
    if samples and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise corrupt(path, f"labels run from {labels.min()} to {labels.max()}", f"0 to {classes - 1}")
    return torch.from_numpy(labels.astype(np.int64))


def to_pixels(images: Bytes) -> Tensor:
    """Convert pictures from bytes to floats in [0, 1], of shape (pictures, channels, height, width).

    Grey pictures may have the shape (pictures, height, width). They get an axis for their single channel.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(images).astype(np.float32)).div_(255)
    return pixels if pixels.ndim == 4 else pixels.unsqueeze(1)
