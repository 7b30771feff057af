"""442 patients, ten baseline measures and the progression of their diabetes after a year (scikit-learn)."""

from __future__ import annotations

import torch

from leakgauge.core.observation import DataSpec
from leakgauge.data.dataset import Dataset


def load() -> Dataset:
    """The measures in their own units; the target is a number.

    ``sex`` is the sensitive column: the file's 1 and 2, whose meaning its source leaves out, become 0 and 1.
    """
    from sklearn.datasets import load_diabetes

    content = load_diabetes(scaled=False)
    inputs = torch.tensor(content.data, dtype=torch.float32)
    inputs[:, content.feature_names.index("sex")] -= 1
    targets = torch.tensor(content.target, dtype=torch.float32)
    spec = DataSpec(
        (inputs.shape[1],),
        classes=None,
        mean=tuple(inputs.mean(0).tolist()),
        std=tuple(inputs.std(0, correction=0).tolist()),
        bounded=False,
        columns=tuple(content.feature_names),
    )
    return Dataset(inputs, targets, spec, name="diabetes", sensitive="sex")
