"""FEMNIST of LEAF: handwritten digits and letters in 62 classes, dark on white, by writer (Caldas et al. 2018).

The subfolder ``femnist`` of the data folder may hold files in one of three formats:

- npz files with the arrays ``x`` (bytes, white is 255), ``y``, ``writer`` (an index into ``writer_ids``) and
  ``writer_ids``.
- the JSON files that LEAF's preprocessing writes.
- the HDF5 files of TensorFlow Federated, which are read with h5py. If there are no files, the archive with these HDF5
  files is downloaded.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from leakgauge.core.checks import whole_number
from leakgauge.core.container import write_atomically
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import MissingExtra
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Remote, Source
from leakgauge.data.formats import (
    Bytes,
    corrupt,
    read_bytes,
    read_npz,
    reading,
    require_bytes,
    require_labels,
    to_pixels,
)
from leakgauge.data.locations import Folder

CLASSES = 62
MEAN, STD = 0.96424, 0.15768
ARCHIVE = "fed_emnist.tar.bz2"
ARCHIVED = ("fed_emnist_train.h5", "fed_emnist_test.h5")

_Part = tuple[str, Bytes, torch.Tensor]


def load(*, folder: Folder = None, download: bool = True, writers: int | None = None) -> Dataset:
    """Load the images. Each writer is a group.

    Classes 0 to 9 are digits, 10 to 35 are capital letters, and 36 to 61 are small letters. The white background has
    the pixel value 1.0, and ink has lower values.

    Args:
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
        writers: The number of writers to load, starting with the first. The default is all writers.
    """
    if writers is not None:
        whole_number("writers", writers)
    parts: list[_Part] = []
    paths = locations.obtain(SOURCE, folder, download)
    if paths[0].name == ARCHIVE:
        paths = _unpack(paths[0])
    if paths[0].suffix == ".h5":
        parts = _read_hdf5(paths, writers)
    else:
        for path in paths:
            read = _read_npz if path.suffix == ".npz" else _read_json
            parts += read(path, None if writers is None else writers - len(parts))
            if writers is not None and len(parts) >= writers:
                break
    sizes = torch.tensor([len(labels) for _, _, labels in parts])
    return Dataset(
        to_pixels(np.concatenate([images for _, images, _ in parts])),
        torch.cat([labels for _, _, labels in parts]),
        DataSpec((1, 28, 28), CLASSES, (MEAN,), (STD,)),
        name="femnist",
        groups=torch.arange(len(parts)).repeat_interleave(sizes),
        group_names=tuple(name for name, _, _ in parts),
    )


def _read_npz(path: Path, limit: int | None) -> list[_Part]:
    arrays = read_npz(path, {"x": (None, 28, 28), "y": (None,), "writer": (None,), "writer_ids": (None,)})
    images = require_bytes(path, "x", arrays["x"])
    labels = require_labels(path, arrays["y"], len(images), CLASSES)
    identities = [str(identity) for identity in arrays["writer_ids"]]
    owners = require_labels(path, arrays["writer"], len(images), len(identities)).numpy()
    parts = []
    for index, identity in enumerate(identities[:limit]):
        rows = np.flatnonzero(owners == index)
        parts.append((identity, images[rows], labels[torch.from_numpy(rows)]))
    return parts


def _read_json(path: Path, limit: int | None) -> list[_Part]:
    expected = "LEAF's JSON: users, and user_data with x (784 numbers from 0 to 1 for each image) and y"
    content = read_bytes(path, expected)
    parts = []
    with reading(path, expected):
        document = json.loads(content)
        if not isinstance(document, dict):
            raise corrupt(path, f"holds a {type(document).__name__}", expected)
        for identity in document["users"][:limit]:
            rows = document["user_data"][identity]
            images = _to_bytes(path, identity, rows["x"], expected)
            labels = np.asarray(rows["y"], dtype=np.int64)
            parts.append((str(identity), images, require_labels(path, labels, len(images), CLASSES)))
    return parts


def _to_bytes(path: Path, identity: str, pixels: object, expected: str) -> Bytes:
    """Convert one writer's pixels from values between 0 and 1 to bytes."""
    values = np.asarray(pixels, dtype=np.float64).reshape(-1, 28, 28)
    if values.size and not 0 <= values.min() <= values.max() <= 1:
        raise corrupt(path, f"some pixels of {identity} are outside [0, 1]", expected)
    return np.rint(values * 255).astype(np.uint8)


def _unpack(archive: Path) -> list[Path]:
    """Unpack TensorFlow Federated's archive into the cache, if needed, and return the paths of its HDF5 files."""
    targets = [locations.cache() / "femnist" / name for name in ARCHIVED]
    if not all(target.is_file() for target in targets):
        with reading(archive, f"a tar.bz2 archive that holds {' and '.join(ARCHIVED)}"), tarfile.open(archive) as tar:
            for target in targets:
                member = tar.extractfile(target.name)
                if member is None:
                    raise KeyError(target.name)
                write_atomically(target, member.read(), private=False)
    return targets


def _read_hdf5(paths: Sequence[Path], limit: int | None) -> list[_Part]:
    """Return the name, images and labels of each writer, sorted by name. Training and test images are joined."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("reading FEMNIST's HDF5 files", "h5py", "femnist") from error
    expected = "TensorFlow Federated's HDF5: examples/WRITER/pixels (N x 28 x 28, 0 to 1) and label"
    writers: dict[str, list[tuple[Bytes, torch.Tensor]]] = {}
    for path in paths:
        with reading(path, expected), h5py.File(path, "r") as file:
            for identity in sorted(file["examples"])[:limit]:
                images = _to_bytes(path, identity, file["examples"][identity]["pixels"], expected)
                labels = np.asarray(file["examples"][identity]["label"])
                writers.setdefault(identity, []).append((images, require_labels(path, labels, len(images), CLASSES)))
    return [
        (identity, np.concatenate([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))
        for identity, parts in sorted(writers.items())[:limit]
    ]


SOURCE = Source(
    "femnist",
    "digits and letters by writer, 28 x 28, 62 classes",
    "folder or download",
    load,
    files=("*.npz", "*.json", "*.h5", ARCHIVE),
    remotes={
        ARCHIVE: Remote(
            f"https://files.googleapis.com/tff-datasets-public/{ARCHIVE}",
            "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
        ),
    },
    position=70,
)
