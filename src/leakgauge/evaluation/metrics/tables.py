"""The metrics for tables: the share of recovered features in each row, and whether a row is recovered exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.observation import DataSpec
from leakgauge.core.table_rows import features_of
from leakgauge.evaluation.metrics.pixels import check_pair

#: The tolerance of TabLeak (Vero et al., ICML 2023), in standard deviations.
TOLERANCE = 0.319
#: The largest error of an exact row, in standard deviations of each column.
EXACT = 0.01


def features(reconstructed: Tensor, original: Tensor, spec: DataSpec, *, tolerance: float = TOLERANCE) -> Tensor:
    """Return, for each row, the share of its features that are recovered, (N,), as in TabLeak (Vero et al., ICML 2023).

    A numeric feature is recovered if its error is at most the tolerance. The columns ``feature=value`` form a category.
    A category is recovered if the column with the largest value is the right one. A category with a single column is
    recovered if the reconstruction and the original lie on the same side of 0.5. A category counts as one feature, even
    if it has many columns.

    Args:
        reconstructed: The reconstructed rows, (N, columns).
        original: The original of each reconstructed row.
        spec: The description of the data, with the names and the standard deviations of the columns.
        tolerance: The largest error with which a numeric feature counts as recovered, in standard deviations.

    >>> spec = DataSpec((3,), 2, std=(10.0, 1.0, 1.0), bounded=False, columns=("age", "sex=f", "sex=m"))
    >>> features(torch.tensor([[44.0, 0.4, 0.3]]), torch.tensor([[40.0, 1.0, 0.0]]), spec)
    tensor([0.5000], dtype=torch.float64)
    """
    return right_features(reconstructed, original, spec, tolerance=tolerance).double().mean(1)


def right_features(reconstructed: Tensor, original: Tensor, spec: DataSpec, *, tolerance: float = TOLERANCE) -> Tensor:
    """Return whether each feature of each row is recovered, (N, features), as :func:`features` counts it.

    The features are in the order of :func:`leakgauge.core.table_rows.features_of`.

    Args:
        reconstructed: The reconstructed rows, (N, columns).
        original: The original of each reconstructed row.
        spec: The description of the data, with the names and the standard deviations of the columns.
        tolerance: The largest error with which a numeric feature counts as recovered, in standard deviations.
    """
    check_pair(reconstructed, original)
    distance = (spec.normalise(reconstructed) - spec.normalise(original)).abs().flatten(1)
    if len(spec.shape) > 1:  # such as a series, which has no features of several columns
        return distance <= tolerance
    right = []
    for _, places, values in features_of(spec):
        guess, truth = reconstructed[:, list(places)], original[:, list(places)]
        if len(values) > 1:
            same = guess.argmax(1) == truth.argmax(1)
        elif values:
            same = ((guess > 0.5) == (truth > 0.5))[:, 0]
        else:
            same = distance[:, places[0]] <= tolerance
        right.append(same & guess.isfinite().all(1))
    return torch.stack(right, 1)


def exact_rows(reconstructed: Tensor, original: Tensor, spec: DataSpec) -> Tensor:
    """Return 1 for each row in which no column has an error above 1% of its standard deviation, and otherwise 0.

    Args:
        reconstructed: The reconstructed rows, (N, columns).
        original: The original of each reconstructed row.
        spec: The description of the data, with the standard deviations of the columns.

    >>> spec = DataSpec((2,), 2, std=(10.0, 1.0), bounded=False)
    >>> exact_rows(torch.tensor([[40.05, 1.0], [44.0, 1.0]]), torch.tensor([[40.0, 1.0], [40.0, 1.0]]), spec)
    tensor([1., 0.], dtype=torch.float64)
    """
    check_pair(reconstructed, original)
    distance = (spec.normalise(reconstructed) - spec.normalise(original)).abs().flatten(1)
    return (distance.amax(1) <= EXACT).double()
