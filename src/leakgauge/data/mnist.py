"""MNIST: 60,000 training and 10,000 test digits, 28 x 28, white on black (LeCun et al. 1998)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from leakgauge.core.checks import whole_number
from leakgauge.core.data_spec import DataSpec
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Remote, Source
from leakgauge.data.formats import corrupt, read_idx, read_npz, require_bytes, require_labels, to_pixels
from leakgauge.data.locations import Folder

MEAN, STD = 0.1307, 0.3081

_PREFIX = {"train": "train", "test": "t10k"}
_WRITER_COLUMN = 2  # the column of QMNIST's label table that holds the writer


def load(
    split: str = "train",
    *,
    folder: Folder = None,
    download: bool = True,
    limit: int | None = None,
    by_writer: bool = False,
) -> Dataset:
    """Load the digits of one split.

    Args:
        split: "train" or "test".
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
        limit: The number of digits to load, starting with the first. The default is all digits.
        by_writer: Whether each writer of digits is a group. The writers are read from QMNIST's label file (Yadav and
            Bottou 2019).
    """
    if limit is not None:
        whole_number("limit", limit)
    prefix = _PREFIX[split]
    images_path = _obtain(f"{prefix}-images-idx3-ubyte", folder, download)
    labels_path = _obtain(f"{prefix}-labels-idx1-ubyte", folder, download)
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


def _obtain(name: str, folder: Folder, download: bool, *before: str) -> Path:
    """Return the path of one of MNIST's files, which is downloaded if it is missing.

    ``before`` holds names of files that are preferred if the data folder has them.
    """
    patterns = (*before, f"{name}.gz", name)
    [path] = locations.obtain(SOURCE, folder, download, patterns=patterns, remote=f"{name}.gz")
    return path


def _writers(split: str, samples: int, folder: Folder, download: bool) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Return the index of the writer of each digit, and the names of the writers."""
    path = _obtain(f"qmnist-{split}-labels-idx2-int", folder, download, "qmnist_writers.npz")
    if path.suffix == ".npz":
        writers = read_npz(path, {f"{split}_writer": (None,)})[f"{split}_writer"]
    else:
        table = read_idx(path, dimensions=2)
        if table.shape[1] <= _WRITER_COLUMN:
            raise corrupt(path, f"has {table.shape[1]} columns", "QMNIST's 8, the third with the writer")
        writers = table[:samples, _WRITER_COLUMN]  # QMNIST's test set has more digits than MNIST's
    if len(writers) != samples:
        raise corrupt(path, f"names the writers of {len(writers)} digits", f"{samples} digits")
    identities, groups = np.unique(writers, return_inverse=True)
    return torch.from_numpy(groups.astype(np.int64)), tuple(str(identity) for identity in identities)


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"

SOURCE = Source(
    "mnist",
    "70,000 digits, 28 x 28, 10 classes",
    "folder or download",
    load,
    splits=("train", "test"),
    files=("*-images-idx3-ubyte.gz", "*-images-idx3-ubyte"),
    remotes={
        name: Remote(server + name, checksum)
        for server, name, checksum in (
            (_MNIST, "train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            (_MNIST, "train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"),
            (_MNIST, "t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3"),
            (_MNIST, "t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c"),
            (_QMNIST, "qmnist-train-labels-idx2-int.gz", "md5:0058f8dd561b90ffdd0f734c6a30e5e4"),
            (_QMNIST, "qmnist-test-labels-idx2-int.gz", "md5:5b5b05890a5e13444e108efe57b788aa"),
        )
    },
    position=60,
)
