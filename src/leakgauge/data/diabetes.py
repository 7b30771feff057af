"""442 diabetes patients with ten measurements and the progression of the disease after one year (scikit-learn)."""

from __future__ import annotations

import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import wheels
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source

COLUMNS = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")


def load() -> Dataset:
    """Load the patients, with all measurements in their original units. The target is the progression, a number.

    The sensitive column is ``sex``. The file encodes it as 1 and 2, without an explanation of these values. The loader
    converts 1 to 0 and 2 to 1.
    """
    inputs = torch.tensor(wheels.scikit_learn_table("diabetes_data_raw.csv.gz", delimiter=None), dtype=torch.float32)
    inputs[:, COLUMNS.index("sex")] -= 1
    targets = torch.tensor(wheels.scikit_learn_table("diabetes_target.csv.gz"), dtype=torch.float32)
    spec = DataSpec(
        (inputs.shape[1],),
        classes=None,
        mean=tuple(inputs.mean(0).tolist()),
        std=tuple(inputs.std(0, correction=0).tolist()),
        bounded=False,
        columns=COLUMNS,
    )
    return Dataset(inputs, targets, spec, name="diabetes", sensitive="sex")


SOURCE = Source("diabetes", "442 patients, a regression; sensitive: sex", "installed", load, position=20)
