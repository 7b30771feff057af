"""CIFAR-10 and CIFAR-100: 50,000 training and 10,000 test pictures in colour, 32 x 32 (Krizhevsky 2009).

The loaders read the "binary version" of the official archives, packed or extracted. They do not read the "python
version", because it is a pickle. They also read an npz file, which may hold a subset of the pictures. The arrays of the
npz file are ``x_train``, ``y_train``, ``x_test`` and ``y_test``, with pictures as (height, width, colour). For
CIFAR-100, the npz file also needs ``coarse_train`` and ``coarse_test``.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leakgauge.core.checks import whole_number
from leakgauge.core.data_spec import DataSpec
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Remote, Source
from leakgauge.data.formats import Bytes, corrupt, read_npz, reading, require_bytes, require_labels, to_pixels
from leakgauge.data.locations import Folder

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Variant:
    """The properties in which CIFAR-10 and CIFAR-100 differ.

    Args:
        name: The name of the dataset.
        archive: The file name of the official archive.
        extracted: The name of the folder inside the archive.
        members: A dictionary from each split to the names of its files in that folder.
        label_bytes: The number of bytes before each picture that hold its labels.
        mean: The mean of each colour channel.
        std: The standard deviation of each colour channel.
    """

    name: str
    archive: str
    extracted: str
    members: dict[str, tuple[str, ...]]
    label_bytes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


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
    """Load the pictures of CIFAR-10. All training pictures need 600 MB of memory.

    Args:
        split: "train" or "test".
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
        limit: The number of pictures to load, starting with the first. The default is all pictures.
    """
    path = _obtain(SOURCE_CIFAR10, folder, download, limit)
    images, labels = _read(CIFAR10, path, split, limit)
    return _dataset(CIFAR10, images, labels[:, 0], path, classes=10)


def load_cifar100(
    split: str = "train",
    *,
    folder: Folder = None,
    download: bool = True,
    limit: int | None = None,
    coarse: bool = False,
) -> Dataset:
    """Load the pictures of CIFAR-100.

    Args:
        split: "train" or "test".
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
        limit: The number of pictures to load, starting with the first. The default is all pictures.
        coarse: Whether the labels are the 20 coarse classes. By default, they are the 100 fine classes.
    """
    path = _obtain(SOURCE_CIFAR100, folder, download, limit)
    images, labels = _read(CIFAR100, path, split, limit)
    return _dataset(CIFAR100, images, labels[:, 0 if coarse else 1], path, classes=20 if coarse else 100)


def _obtain(source: Source, folder: Folder, download: bool, limit: int | None) -> Path:
    if limit is not None:
        whole_number("limit", limit)
    return locations.obtain(source, folder, download)[0]


def _dataset(variant: Variant, images: Bytes, labels: Bytes, path: Path, classes: int) -> Dataset:
    targets = require_labels(path, labels, len(images), classes)
    spec = DataSpec((3, 32, 32), classes, variant.mean, variant.std)
    return Dataset(to_pixels(images), targets, spec, name=variant.name)


def _read(variant: Variant, path: Path, split: str, limit: int | None) -> tuple[Bytes, Bytes]:
    """Return the pictures of one split and their labels. CIFAR-100 has two columns of labels, coarse and fine."""
    if path.suffix == ".npz":
        images, labels = _read_npz(path, split, coarse=variant.label_bytes == 2)
    elif path.suffix == ".bin":
        records = [_read_file(path.parent / member) for member in variant.members[split]]
        images, labels = _unpack(records, variant.label_bytes, path.parent)
    else:
        records = _read_archive(path, [f"{variant.extracted}/{member}" for member in variant.members[split]])
        images, labels = _unpack(records, variant.label_bytes, path)
    return images[:limit], labels[:limit]


def _read_npz(path: Path, split: str, coarse: bool) -> tuple[Bytes, Bytes]:
    names = [f"coarse_{split}"] * coarse + [f"y_{split}"]
    shapes = {f"x_{split}": (None, 32, 32, 3)} | dict.fromkeys(names, (None,))
    arrays = read_npz(path, shapes)
    images = require_bytes(path, f"x_{split}", arrays[f"x_{split}"]).transpose(0, 3, 1, 2)
    if any(len(arrays[name]) != len(images) for name in names):
        raise corrupt(path, "pictures and labels differ in number", "one label for each picture")
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
            raise corrupt(path, f"a batch holds {len(batch)} bytes", f"{size} bytes for each picture")
    records = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, :label_bytes]


def _source(variant: Variant, loader: Callable[..., Dataset], classes: int, checksum: str, position: int) -> Source:
    return Source(
        variant.name,
        f"60,000 pictures, 3 x 32 x 32, {classes} classes",
        "folder or download",
        loader,
        splits=("train", "test"),
        files=(f"{variant.extracted}/*.bin", variant.archive, "*.npz"),
        remotes={variant.archive: Remote(f"https://www.cs.toronto.edu/~kriz/{variant.archive}", checksum)},
        position=position,
    )


SOURCE_CIFAR10 = _source(CIFAR10, load_cifar10, 10, "md5:c32a1d4ab5d03f1284b67883e8d87530", 80)
SOURCE_CIFAR100 = _source(CIFAR100, load_cifar100, 100, "md5:03b5dce01913d631647c71ecec9e9cb8", 90)
