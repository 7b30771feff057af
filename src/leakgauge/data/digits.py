"""1,797 handwritten digits of 8 x 8 pixels, from scikit-learn (the test set of UCI Optical Recognition)."""

from __future__ import annotations

import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import wheels
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source


def load() -> Dataset:
    """Load the digits. The 17 grey levels of the pixels are scaled to [0, 1]."""
    table = torch.tensor(wheels.scikit_learn_table("digits.csv.gz"), dtype=torch.float32)
    inputs, targets = table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()
    return Dataset(inputs, targets, DataSpec((1, 8, 8), classes=10), name="digits")


SOURCE = Source("digits", "1,797 digits, 8 x 8", "installed", load, position=10)
