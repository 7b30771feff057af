"""How much of a table's row came back."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.observation import DataSpec
from leakgauge.evaluation.metrics.pixels import check_pair

TOLERANCE = 0.319  # standard deviations; Vero et al., TabLeak, ICML 2023


def features(reconstructed: Tensor, original: Tensor, spec: DataSpec, *, tolerance: float = TOLERANCE) -> Tensor:
    """The share of each row's features that are recovered, (N,), after TabLeak (Vero et al., ICML 2023).

    A number counts as recovered within ``tolerance`` standard deviations (those of ``spec``), a category
    (the columns ``feature=value``) if its largest column is the right one; a category with a single column
    if both values lie on the same side of a half. A category is one feature however many columns it has.

    >>> spec = DataSpec((3,), 2, std=(10.0, 1.0, 1.0), bounded=False, columns=("age", "sex=f", "sex=m"))
    >>> features(torch.tensor([[44.0, 0.4, 0.3]]), torch.tensor([[40.0, 1.0, 0.0]]), spec)
    tensor([0.5000], dtype=torch.float64)
    """
    check_pair(reconstructed, original)
    right = []
    groups = spec.one_hot_groups
    for columns in groups.values():
        guess, truth = reconstructed[:, columns], original[:, columns]
        right.append((guess > 0.5) == (truth > 0.5) if len(columns) == 1 else _same_largest(guess, truth))
    grouped = {column for columns in groups.values() for column in columns}
    distance = (spec.normalise(reconstructed) - spec.normalise(original)).abs().flatten(1)
    numeric = [column for column in range(distance.shape[1]) if column not in grouped]
    right.append(distance[:, numeric] <= tolerance)
    return torch.cat(right, dim=1).double().mean(1)


def _same_largest(guess: Tensor, truth: Tensor) -> Tensor:
    return (guess.argmax(1) == truth.argmax(1)).unsqueeze(1)
