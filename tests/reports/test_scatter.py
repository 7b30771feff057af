import math

import numpy as np
import pytest

from leakgauge.core.errors import InvalidInput
from leakgauge.reports.scatter import round_numbers, scatter


def draw(points):
    return scatter(points, across="accuracy", up="leakage", line=(10.0, "guessing"))


def test_every_point_changes_the_picture():
    one = np.asarray(draw({"a": (50.0, 20.0, True), "b": (90.0, 12.0, False)}))
    other = np.asarray(draw({"a": (50.0, 20.0, False), "b": (90.0, 12.0, False)}))
    assert one.shape == (560, 860, 3)
    assert (one != other).any()
    orange = (one == (213, 94, 0)).all(-1)
    blue = (one == (0, 114, 178)).all(-1)
    assert orange.sum() > 60
    assert blue.sum() > 30


def test_many_points_at_one_place_are_all_named():
    """Twelve names on one point: each makes the picture darker somewhere else."""
    before = np.asarray(draw({"defence 0": (50.0, 20.0, True)}))
    after = np.asarray(draw({f"defence {number}": (50.0, 20.0, True) for number in range(12)}))
    dark = [int((image.sum(-1) < 200).sum()) for image in (before, after)]
    assert dark[1] > dark[0] + 8 * 100


@pytest.mark.parametrize("values", [[0.0, 1.0], [93.2, 93.3], [5.0], [-3.0, 40.0], [1e-4, 2e-4]])
def test_axes_have_round_numbers_around_the_values(values):
    axis = round_numbers(values)
    assert axis[0] <= min(values)
    assert axis[-1] >= max(values)
    assert 2 <= len(axis) <= 10
    assert all(math.isfinite(value) for value in axis)


def test_nothing_to_draw_is_refused():
    with pytest.raises(InvalidInput):
        draw({"a": (math.nan, 1.0, True)})
