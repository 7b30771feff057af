"""569 tumours, 30 measures of their cell nuclei, malignant or benign (Wisconsin, carried by scikit-learn)."""

from __future__ import annotations

import torch

from leakgauge.core.observation import DataSpec
from leakgauge.data.dataset import Dataset


def load() -> Dataset:
    """The measures in their own units; class 0 is malignant, class 1 benign."""
    from sklearn.datasets import load_breast_cancer

    content = load_breast_cancer()
    inputs = torch.tensor(content.data, dtype=torch.float32)
    spec = DataSpec(
        (inputs.shape[1],),
        classes=2,
        mean=tuple(inputs.mean(0).tolist()),
        std=tuple(inputs.std(0, correction=0).tolist()),
        bounded=False,
        columns=tuple(str(name) for name in content.feature_names),
    )
    return Dataset(inputs, torch.tensor(content.target, dtype=torch.long), spec, name="breast_cancer")
