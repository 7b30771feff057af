"""Intervals are those of scipy.stats."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import mean_interval, wilson_interval
from tests.shared import LazyModule

stats = LazyModule("scipy.stats")


def test_mean_is_students_t():
    values = torch.tensor([3.0, 4.5, 2.2, 9.1, 5.0])
    interval = mean_interval(values)
    low, high = stats.t.interval(0.95, 4, loc=values.mean().item(), scale=stats.sem(values.numpy()))
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-6)


def test_one_value_has_no_interval_and_equal_values_a_point():
    assert mean_interval(torch.tensor([2.0])).low is None
    assert mean_interval(torch.tensor([2.0, 2.0])).high == 2.0


@given(st.integers(1, 200), st.data())
def test_share_is_wilsons(trials, data):
    successes = data.draw(st.integers(0, trials))
    interval = wilson_interval(successes, trials)
    assert interval.low is not None
    assert interval.high is not None
    expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1


@pytest.mark.parametrize("arguments", [(1, 0), (3, 2), (-1, 2), (1, 2, 1.0)])
def test_impossible_shares(arguments):
    with pytest.raises(InvalidInput):
        wilson_interval(*arguments)


def test_mean_of_nothing():
    with pytest.raises(InvalidInput, match="no values"):
        mean_interval(torch.tensor([]))


def test_an_interval_ends_where_no_value_can_lie() -> None:
    values = torch.tensor([0.1, 0.9, 1.0])
    free, bound = mean_interval(values), mean_interval(values, limits=(0.0, 1.0))
    assert free.low is not None
    assert free.high is not None
    assert free.low < 0
    assert free.high > 1
    assert (bound.low, bound.high) == (0.0, 1.0)
