"""A figure is compared with its chance level and with a lucky guess."""

import pytest

from leakgauge.core.measure import Measure


@pytest.mark.parametrize(
    ("value", "luck", "direction", "beyond"),
    [
        (20.0, 15.0, "higher", True),
        (15.0, 15.0, "higher", False),
        (14.0, 15.0, "higher", False),
        (0.0, 0.0, "lower", False),
        (1.0, 3.0, "lower", True),
        (1.0, None, "lower", True),
    ],
)
def test_a_value_beyond_luck(value, luck, direction, beyond):
    measure = Measure("metric", value, luck=luck, direction=direction)
    assert measure.beyond_luck is beyond
    assert Measure.from_row(measure.to_row()).luck == luck
