import math

import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.reports import course, loss_curves, running_minimum, stacked
from leakgauge.reports.curves import _round_step

RED = (200, 30, 30)
FIRST, SECOND = (0, 114, 178), (230, 159, 0)


def colours(image):
    return {colour for _, colour in image.getcolors(100_000)}


def test_each_curve_has_its_colour_and_a_stop_is_marked_in_red():
    falling = torch.logspace(2, -6, 50)
    plain = loss_curves({"a": falling, "b": falling * 3})
    assert {FIRST, SECOND} <= colours(plain)
    assert RED not in colours(plain)
    assert RED in colours(loss_curves({"a": falling}, {"a": 20}, size=(500, 300), title="losses"))


def test_what_has_no_logarithm_leaves_a_gap():
    whole = loss_curves({"": torch.tensor([1.0, 0.5, 0.25, 0.125])})
    broken = loss_curves({"": torch.tensor([1.0, math.nan, 0.0, 0.125])})

    def ink(image):
        return {colour: count for count, colour in image.getcolors(100_000)}.get(FIRST, 0)

    assert ink(broken) < ink(whole)


def test_a_single_loss_can_be_drawn():
    assert loss_curves({"a": torch.tensor([0.5])}).size == (760, 420)


@pytest.mark.parametrize("curves", [{}, {"a": torch.zeros(3)}, {"a": torch.tensor([math.nan])}], ids=str)
def test_nothing_to_draw_is_refused(curves):
    with pytest.raises(InvalidInput, match="at least one finite loss"):
        loss_curves(curves)


def test_a_running_minimum_is_a_staircase_that_never_rises():
    image = running_minimum({"case 1": [3.0, 8.0, 0.5, 20.0, 0.04]})
    columns = [[y for y in range(image.height) if image.getpixel((x, y)) == FIRST] for x in range(image.width)]
    below_the_legend = [[y for y in column if y > 45] for column in columns]
    heights = [min(column) for column in below_the_legend if column]
    assert heights == sorted(heights)
    assert len(set(heights)) == 3
    assert RED not in colours(image)


def test_what_a_search_found_looks_the_same_trial_by_trial_and_as_its_minimum():
    values = [math.nan, 3.0, 8.0, math.inf, 0.5, 0.0, 2.0]
    lowest = [math.inf, 3.0, 3.0, 3.0, 0.5, 0.5, 0.5]
    assert running_minimum({"a": values}).tobytes() == running_minimum({"a": lowest}).tobytes()


def test_the_first_guided_trial_is_marked():
    assert RED in colours(running_minimum({"a": [3.0, 2.0, 1.0], "b": [2.0, 2.0, 2.0]}, guided=1, title="f(Q)"))


@pytest.mark.parametrize("values", [{}, {"a": []}, {"a": [0.0, math.nan]}], ids=str)
def test_a_running_minimum_of_nothing_is_refused(values):
    with pytest.raises(InvalidInput, match="at least one finite value"):
        running_minimum(values)


@pytest.mark.parametrize(("last", "step"), [(1, 1), (6, 1), (7, 2), (30, 5), (99, 20), (300, 50), (4000, 1000)])
def test_marks_stand_at_round_steps(last, step):
    assert _round_step(last) == step


def test_a_quality_is_drawn_on_a_plain_scale_where_there_is_one():
    image = course({"a": {0: 9.0, 50: 14.0, 100: 22.0}, "b": {0: 9.0, 100: math.nan}}, title="PSNR, dB")
    assert image.size == (760, 300)
    assert FIRST in colours(image)
    assert stacked([image, loss_curves({"": torch.ones(2)}, size=(500, 200))]).size == (760, 500)
    with pytest.raises(InvalidInput, match="at least one finite value"):
        course({"a": {0: math.inf}})
