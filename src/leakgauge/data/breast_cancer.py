"""569 malignant or benign tumours with 30 measurements of their cell nuclei (Wisconsin, from scikit-learn)."""

from __future__ import annotations

import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source


def load() -> Dataset:
    """Load the tumours, with all measurements in their original units. Class 0 is malignant, and class 1 is benign."""
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


SOURCE = Source("breast_cancer", "569 tumours, 30 measures, 2 classes", "installed", load, position=30)
