"""MNIST: 60,000 and 10,000 handwritten digits, 28 x 28, white on black (LeCun et al. 1998)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from leakgauge.core.checks import at_least
from leakgauge.core.observation import DataSpec
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.formats import corrupt, read_idx, read_npz, require_bytes, require_labels, to_pixels
from leakgauge.data.locations import Folder

MEAN, STD = 0.1307, 0.3081

_PREFIX = {"train": "train", "test": "t10k"}
_WRITER_COLUMN = 2  # of QMNIST's label table


def load(
    split: str = "train",
    *,
    folder: Folder = None,
    download: bool = True,
    limit: int | None = None,
    by_writer: bool = False,
) -> Dataset:
    """The digits of one split, the first ``limit`` of them.

    With ``by_writer`` the groups are the people who wrote them, as QMNIST traced them (Yadav and Bottou
    2019); this needs one more file.
    """
    at_least(1, limit=limit)
    prefix = _PREFIX[split]
    images_name, labels_name = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
    [images_path] = _obtain(images_name, folder, download)
    [labels_path] = _obtain(labels_name, folder, download)
    images = require_bytes(images_path, "images", read_idx(images_path, dimensions=3))
    if images.shape[1:] != (28, 28):
        raise corrupt(images_path, f"images are {images.shape[1]} x {images.shape[2]}", "28 x 28")
    targets = require_labels(labels_path, read_idx(labels_path, dimensions=1), len(images), classes=10)
    groups, names = _writers(split, len(images), folder, download) if by_writer else (None, ())
    return Dataset(
        to_pixels(images[:limit]),
        targets[:limit],
        DataSpec((1, 28, 28), 10, (MEAN,), (STD,)),
        name="mnist",
        groups=None if groups is None else groups[:limit],
        group_names=names,
    )


def _obtain(name: str, folder: Folder, download: bool) -> list[Path]:
    return locations.obtain("mnist", (f"{name}.gz", name), f"{name}.gz", folder, download)


def _writers(split: str, samples: int, folder: Folder, download: bool) -> tuple[torch.Tensor, tuple[str, ...]]:
    table_name = f"qmnist-{split}-labels-idx2-int"
    patterns = ("qmnist_writers.npz", f"{table_name}.gz", table_name)
    [path] = locations.obtain("mnist", patterns, f"{table_name}.gz", folder, download)
    if path.suffix == ".npz":
        writers = read_npz(path, {f"{split}_writer": (None,)})[f"{split}_writer"]
    else:
        table = read_idx(path, dimensions=2)
        if table.shape[1] <= _WRITER_COLUMN:
            raise corrupt(path, f"has {table.shape[1]} columns", "QMNIST's 8, the third with the writer")
        writers = table[:samples, _WRITER_COLUMN]  # QMNIST's test set goes on after MNIST's
    if len(writers) != samples:
        raise corrupt(path, f"names the writers of {len(writers)} digits", f"{samples} digits")
    identities, groups = np.unique(writers, return_inverse=True)
    return torch.from_numpy(groups.astype(np.int64)), tuple(str(identity) for identity in identities)
