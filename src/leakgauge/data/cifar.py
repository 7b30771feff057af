"""CIFAR-10 and CIFAR-100: 50,000 and 10,000 colour pictures, 32 x 32 (Krizhevsky 2009).

Only the "binary version" of the official archives is read (as it is, or extracted), since the "python
version" is a pickle. An npz file with ``x_train``, ``y_train``, ``x_test``, ``y_test`` (pictures as height,
width, colour) serves as well, for subsets; CIFAR-100 also needs ``coarse_train`` and ``coarse_test`` there.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leakgauge.core.checks import at_least
from leakgauge.core.observation import DataSpec
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.formats import Bytes, corrupt, read_npz, reading, require_bytes, require_labels, to_pixels
from leakgauge.data.locations import Folder

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Variant:
    """What differs between the two: file names, label bytes before each picture, and statistics."""

    name: str
    archive: str
    extracted: str
    members: dict[str, tuple[str, ...]]
    label_bytes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def patterns(self) -> tuple[str, ...]:
        """What the folder may hold, the official files first."""
        return (f"{self.extracted}/*.bin", self.archive, "*.npz")


CIFAR10 = Variant(
    "cifar10",
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)},
    label_bytes=1,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = Variant(
    "cifar100",
    "cifar-100-binary.tar.gz",
    "cifar-100-binary",
    {"train": ("train.bin",), "test": ("test.bin",)},
    label_bytes=2,
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)


def load_cifar10(
    split: str = "train", *, folder: Folder = None, download: bool = True, limit: int | None = None
) -> Dataset:
    """CIFAR-10, the first ``limit`` pictures of one split (all of them need 600 MB of memory)."""
    images, labels, path = _read(CIFAR10, split, folder, download, limit)
    return _dataset(CIFAR10, images, labels[:, 0], path, classes=10)


def load_cifar100(
    split: str = "train",
    *,
    folder: Folder = None,
    download: bool = True,
    limit: int | None = None,
    coarse: bool = False,
) -> Dataset:
    """CIFAR-100 with its 100 fine classes, or its 20 coarse ones."""
    images, labels, path = _read(CIFAR100, split, folder, download, limit)
    return _dataset(CIFAR100, images, labels[:, 0 if coarse else 1], path, classes=20 if coarse else 100)


def _dataset(variant: Variant, images: Bytes, labels: Bytes, path: Path, classes: int) -> Dataset:
    targets = require_labels(path, labels, len(images), classes)
    spec = DataSpec((3, 32, 32), classes, variant.mean, variant.std)
    return Dataset(to_pixels(images), targets, spec, name=variant.name)


def _read(variant: Variant, split: str, folder: Folder, download: bool, limit: int | None) -> tuple[Bytes, Bytes, Path]:
    at_least(1, limit=limit)
    path = locations.obtain(variant.name, variant.patterns, variant.archive, folder, download)[0]
    if path.suffix == ".npz":
        images, labels = _read_npz(path, split, coarse=variant.label_bytes == 2)
    elif path.suffix == ".bin":
        records = [_read_file(path.parent / member) for member in variant.members[split]]
        images, labels = _unpack(records, variant.label_bytes, path.parent)
    else:
        records = _read_archive(path, [f"{variant.extracted}/{member}" for member in variant.members[split]])
        images, labels = _unpack(records, variant.label_bytes, path)
    return images[:limit], labels[:limit], path


def _read_npz(path: Path, split: str, coarse: bool) -> tuple[Bytes, Bytes]:
    names = [f"coarse_{split}"] * coarse + [f"y_{split}"]
    shapes = {f"x_{split}": (None, 32, 32, 3)} | dict.fromkeys(names, (None,))
    arrays = read_npz(path, shapes)
    images = require_bytes(path, f"x_{split}", arrays[f"x_{split}"]).transpose(0, 3, 1, 2)
    if any(len(arrays[name]) != len(images) for name in names):
        raise corrupt(path, "pictures and labels differ in number", "one label each")
    return images, np.stack([arrays[name] for name in names], axis=1)


def _read_file(path: Path) -> bytes:
    with reading(path, "a batch of CIFAR's binary version"):
        return path.read_bytes()


def _read_archive(path: Path, members: Sequence[str]) -> list[bytes]:
    with reading(path, f"a tar.gz archive that holds {', '.join(members)}"), tarfile.open(path) as archive:
        contents = []
        for member in members:
            stream = archive.extractfile(member)
            if stream is None:
                raise corrupt(path, f"{member} is not a file", "CIFAR's binary version")
            contents.append(stream.read())
        return contents


def _unpack(batches: Sequence[bytes], label_bytes: int, path: Path) -> tuple[Bytes, Bytes]:
    size = label_bytes + _PIXELS
    for batch in batches:
        if not batch or len(batch) % size:
            raise corrupt(path, f"a batch holds {len(batch)} bytes", f"a multiple of {size}, one record a picture")
    records = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, :label_bytes]
