"""The rows of a table as a person reads them, with the names of categories and numbers in their own units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from leakgauge.core.data_spec import DataSpec

#: The largest number of decimals of a number.
MOST_DECIMALS = 4


class Feature(NamedTuple):
    """One column of the user's table.

    Args:
        name: The name of the column.
        columns: The indices of the model's columns for it, one for each category, or a single one for a number.
        values: The names of the categories. They are empty for a number.
    """

    name: str
    columns: tuple[int, ...]
    values: tuple[str, ...] = ()


def features_of(spec: DataSpec) -> tuple[Feature, ...]:
    """Return the columns of the user's table, in the order of their first column in the model's input.

    Args:
        spec: The description of the data.

    >>> spec = DataSpec((3,), 2, bounded=False, columns=("age", "sex=f", "sex=m"))
    >>> [(feature.name, feature.values) for feature in features_of(spec)]
    [('age', ()), ('sex', ('f', 'm'))]
    """
    groups = spec.one_hot_groups
    names = spec.columns or tuple(f"column {place}" for place in range(spec.shape[0]))
    found: dict[str, Feature] = {}
    for place, name in enumerate(names):
        feature = name.partition("=")[0] if spec.columns else name
        if feature in groups and "=" in name:
            values = tuple(names[column].partition("=")[2] for column in groups[feature])
            found.setdefault(f"{feature}=", Feature(feature, tuple(groups[feature]), values))
        else:
            found[name] = Feature(name, (place,))
    return tuple(found.values())


def decimals_of(values: Tensor) -> int:
    """Return the smallest number of decimals, at most four, with which all numbers keep their values.

    Args:
        values: The numbers, in single precision.
    """
    numbers = values.detach().double()
    numbers = numbers[numbers.isfinite()]
    for decimals in range(MOST_DECIMALS):
        rounded = (numbers * 10**decimals).round() / 10**decimals
        if bool(((rounded - numbers).abs() <= 1e-6 * numbers.abs() + 1e-9).all()):
            return decimals
    return MOST_DECIMALS


def number_text(value: float, decimals: int, words: Sequence[str] = ()) -> str:
    """Return a number as text.

    Args:
        value: The number.
        decimals: The number of decimals.
        words: The words for the values 0, 1 and so on, if there are any. The word for the nearest value is returned.

    >>> number_text(38.97, 0), number_text(1e12, 2), number_text(0.8, 0, ("f", "m")), number_text(float("nan"), 0)
    ('39', '1e+12', 'm', '-')
    """
    if not math.isfinite(value):
        return "-"
    if words:
        return words[min(max(round(value), 0), len(words) - 1)]
    return f"{value:.3g}" if abs(value) >= 1e9 else f"{round(value, decimals) + 0.0:.{decimals}f}"


def records_of(
    samples: Tensor,
    spec: DataSpec,
    *,
    like: Tensor | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
) -> list[list[str]]:
    """Return the cells of rows as text, in the order of :func:`features_of`.

    A category is the name of its largest column. A category with a single column is its name from 0.5 on, and "other"
    below. Numbers have as many decimals as those of ``like``.

    Args:
        samples: The rows in their own units, (N, columns). Reconstructions have such units too.
        spec: The description of the data.
        like: True rows, which show how many decimals a column has. The default is ``samples``.
        words: A dictionary from columns of 0 and 1 to the words for these values.

    >>> spec = DataSpec((3,), 2, bounded=False, columns=("age", "sex=f", "sex=m"))
    >>> import torch
    >>> records_of(torch.tensor([[38.9, 0.2, 0.7]]), spec, like=torch.tensor([[39.0, 0.0, 1.0]]))
    [['39', 'm']]
    """
    true, rows = samples if like is None else like, samples.detach().double()
    columns: list[list[str]] = []
    for name, places, values in features_of(spec):
        block = rows[:, list(places)]
        if not values:
            decimals, pair = decimals_of(true[:, places[0]]), (words or {}).get(name, ())
            columns.append([number_text(value, decimals, pair) for value in block[:, 0].tolist()])
        else:
            columns.append([_category(shares, values) for shares in block.tolist()])
    return [list(row) for row in zip(*columns, strict=True)] if columns else []


def _category(shares: Sequence[float], values: Sequence[str]) -> str:
    if not all(map(math.isfinite, shares)):
        return "-"
    if len(values) == 1:
        return values[0] if shares[0] > 0.5 else "other"
    return values[shares.index(max(shares))]
