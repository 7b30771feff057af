"""The recovered share of the features of rows."""

import pytest
import torch

from leakgauge.core.observation import DataSpec
from leakgauge.evaluation import features
from leakgauge.evaluation.metrics.tables import exact_rows, right_features

SPEC = DataSpec(
    (6,),
    2,
    mean=(40.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    std=(10.0, 1.0, 1.0, 1.0, 1.0, 2.0),
    bounded=False,
    columns=("age", "job=a", "job=b", "job=c", "male=yes", "hours"),
)
ROW = torch.tensor([[40.0, 0.0, 1.0, 0.0, 1.0, 8.0]])


def test_groups():
    assert SPEC.one_hot_groups == {"job": [1, 2, 3], "male": [4]}
    assert DataSpec((2,), 2).one_hot_groups == {}


@pytest.mark.parametrize(
    ("change", "share"),
    [
        ({}, 1.0),
        ({0: 43.1}, 1.0),
        ({0: 43.3}, 0.75),
        ({5: 7.4}, 1.0),
        ({5: 7.3}, 0.75),
        ({1: 0.9}, 1.0),
        ({1: 1.1}, 0.75),
        ({4: 0.6}, 1.0),
        ({4: 0.4}, 0.75),
        ({0: 0.0, 1: 2.0, 4: 0.0, 5: 0.0}, 0.0),
    ],
)
def test_tolerance_and_categories(change, share):
    guess = ROW.clone()
    for column, value in change.items():
        guess[0, column] = value
    assert features(guess, ROW, SPEC).tolist() == [share]


def test_without_column_names_every_number_counts():
    spec = DataSpec((2, 3), 2, bounded=False)
    original = torch.zeros(2, 2, 3)
    guess = original.clone()
    guess[0, 0, 0] = 1.0
    assert features(guess, original, spec).tolist() == pytest.approx([5 / 6, 1.0])


def test_a_row_is_exact_only_if_every_column_is():
    near, off = ROW.clone(), ROW.clone()
    near[0, 0] += 0.05  # half a per cent of the standard deviation
    off[0, 0] += 0.5
    assert exact_rows(torch.cat((ROW, near, off)), ROW.expand(3, -1), SPEC).tolist() == [1.0, 1.0, 0.0]


def test_each_feature_is_judged_in_the_order_of_the_columns():
    """Beside a plain loop over rows and features."""
    draw = torch.Generator().manual_seed(0)
    original, guess = (torch.randn(20, 6, generator=draw) for _ in range(2))
    guess[:, 0] = original[:, 0] + 5 * torch.randn(20, generator=draw)
    right = right_features(guess, original, SPEC)
    assert right.shape == (20, 4)
    for row in range(20):
        near = abs(float(guess[row, 0] - original[row, 0])) / 10 <= 0.319
        job = max(range(1, 4), key=lambda at: guess[row, at]) == max(range(1, 4), key=lambda at: original[row, at])
        male = (guess[row, 4] > 0.5) == (original[row, 4] > 0.5)
        hours = abs(float(guess[row, 5] - original[row, 5])) / 2 <= 0.319
        assert right[row].tolist() == [near, job, bool(male), hours]
    assert torch.equal(features(guess, original, SPEC), right.double().mean(1))


def test_a_value_that_is_missing_is_never_right():
    first = torch.tensor([[40.0, 1.0, 0.0, 0.0, 0.0, 8.0]])  # the first category, which argmax of NaN would choose
    assert not right_features(torch.full((1, 6), torch.nan), first, SPEC).any()
