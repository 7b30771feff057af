"""Curves lie where their values are. Curves without a name have no legend, so their colour is theirs alone."""

import math

import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.reports import course, loss_curves, running_minimum, stacked
from leakgauge.reports.curves import _round_step
from tests.reports.pixels import box, curve, places

RED = (200, 30, 30)
FIRST, SECOND = (0, 114, 178), (230, 159, 0)


def share_of_width(image, colour, around=FIRST):
    """Return where a vertical line stands, as a share of the width of a curve."""
    left, _, right, _ = box(image, around)
    line_left, _, line_right, _ = box(image, colour)
    assert line_right - line_left <= 1
    return (line_left - left) / (right - left)


def is_straight(rows):
    columns = sorted(rows)
    first, middle, last = (rows[columns[place]] for place in (2, len(columns) // 2, -3))
    return abs(middle - (first + last) / 2) <= 2


def test_each_curve_has_its_colour_and_its_name(texts):
    falling = torch.logspace(2, -6, 50)
    image = loss_curves({"lower": falling, "higher": falling * 100}, title="losses")
    lower, higher = curve(image, FIRST), curve(image, SECOND)
    column = (min(lower) + max(lower)) // 2
    assert higher[column] < lower[column] - 10
    assert {"lower", "higher", "losses", "step"} <= {text for text, _ in texts}
    assert not len(places(image, RED)[0])


def test_the_step_at_which_an_attack_ended_is_marked():
    image = loss_curves({"": torch.logspace(2, -6, 50)}, {"": 20}, size=(500, 300))
    assert share_of_width(image, RED) == pytest.approx(20 / 49, abs=0.01)


def test_losses_are_on_a_logarithmic_scale():
    powers = loss_curves({"": torch.logspace(2, -6, 50)})
    assert is_straight(curve(powers, FIRST))
    assert not is_straight(curve(loss_curves({"": torch.linspace(100, 1e-6, 50)}), FIRST))


def test_losses_without_a_logarithm_leave_a_gap():
    whole = curve(loss_curves({"": torch.tensor([1.0, 0.5, 0.3, 0.2, 0.125])}), FIRST)
    broken = curve(loss_curves({"": torch.tensor([1.0, 0.5, math.nan, 0.2, 0.125])}), FIRST)
    left, right = min(whole), max(whole)
    assert len(whole) == right - left + 1
    assert (min(broken), max(broken)) == (left, right)
    gap = {column for column in whole if column not in broken}
    assert gap
    assert 0.2 < (min(gap) - left) / (right - left) < 0.3
    assert 0.7 < (max(gap) - left) / (right - left) < 0.8


def test_a_single_loss_can_be_drawn():
    assert loss_curves({"a": torch.tensor([0.5])}).size == (760, 420)


@pytest.mark.parametrize("curves", [{}, {"a": torch.zeros(3)}, {"a": torch.tensor([math.nan])}], ids=str)
def test_curves_without_a_loss_are_refused(curves):
    with pytest.raises(InvalidInput, match="at least one finite loss"):
        loss_curves(curves)


def test_a_running_minimum_is_a_staircase_that_never_rises():
    image = running_minimum({"": [3.0, 8.0, 0.5, 20.0, 0.04]})
    columns, rows = places(image, FIRST)
    heights = [rows[columns == column].min() for column in sorted(set(columns))]
    assert heights == sorted(heights)
    assert len(set(heights)) == 3
    assert not len(places(image, RED)[0])


def test_the_trials_of_a_search_and_their_minima_give_the_same_picture():
    values = [math.nan, 3.0, 8.0, math.inf, 0.5, 0.0, 2.0]
    lowest = [math.inf, 3.0, 3.0, 3.0, 0.5, 0.5, 0.5]
    assert running_minimum({"a": values}).tobytes() == running_minimum({"a": lowest}).tobytes()


def test_a_line_parts_random_trials_from_guided_ones(texts):
    image = running_minimum({"": [3.0, 2.0, 1.0]}, guided=1)
    assert share_of_width(image, RED) == pytest.approx(1 / 3, abs=0.01)
    boxes = dict(texts)
    assert boxes["random"][2] < box(image, RED)[0] < boxes["guided"][0]


@pytest.mark.parametrize("values", [{}, {"a": []}, {"a": [0.0, math.nan]}], ids=str)
def test_a_running_minimum_without_a_value_is_refused(values):
    with pytest.raises(InvalidInput, match="at least one finite value"):
        running_minimum(values)


@pytest.mark.parametrize(("last", "step"), [(1, 1), (6, 1), (7, 2), (30, 5), (99, 20), (300, 50), (4000, 1000)])
def test_marks_stand_at_round_steps(last, step):
    assert _round_step(last) == step


def test_a_quality_is_drawn_on_a_linear_scale():
    image = course({"": {0: 1.0, 50: 11.0, 100: 21.0}, "b": {0: 9.0, 100: math.nan}}, title="PSNR, dB")
    assert image.size == (760, 300)
    assert is_straight(curve(image, FIRST))
    with pytest.raises(InvalidInput, match="at least one finite value"):
        course({"a": {0: math.inf}})


def test_pictures_are_stacked_below_each_other():
    upper, lower = course({"": {0: 1.0, 1: 2.0}}), loss_curves({"": torch.ones(2)}, size=(500, 200))
    both = stacked([upper, lower])
    assert both.size == (760, 500)
    assert both.crop((0, 0, 760, 300)).tobytes() == upper.tobytes()
    assert both.crop((0, 300, 500, 500)).tobytes() == lower.tobytes()
