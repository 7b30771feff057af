"""569 malignant or benign tumours with 30 measurements of their cell nuclei (Wisconsin, from scikit-learn)."""

from __future__ import annotations

import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import wheels
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source

MEASUREMENTS = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)  # fmt: skip
KINDS = ("mean {}", "{} error", "worst {}")


def load() -> Dataset:
    """Load the tumours, with all measurements in their original units. Class 0 is malignant, and class 1 is benign."""
    table = torch.tensor(wheels.scikit_learn_table("breast_cancer.csv", skip=1), dtype=torch.float32)
    inputs, targets = table[:, :-1].contiguous(), table[:, -1].long()
    spec = DataSpec(
        (inputs.shape[1],),
        classes=2,
        mean=tuple(inputs.mean(0).tolist()),
        std=tuple(inputs.std(0, correction=0).tolist()),
        bounded=False,
        columns=tuple(kind.format(name) for kind in KINDS for name in MEASUREMENTS),
    )
    return Dataset(inputs, targets, spec, name="breast_cancer")


SOURCE = Source("breast_cancer", "569 tumours, 30 measures, 2 classes", "installed", load, position=30)
