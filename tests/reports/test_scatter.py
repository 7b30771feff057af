"""Points lie where their values are, and every label can be read."""

import math
from itertools import combinations

import pytest
from PIL import Image

from leakgauge.core.errors import InvalidInput
from leakgauge.reports.drawing import round_numbers
from leakgauge.reports.scatter import scatter, stacked
from tests.reports.pixels import box

ORANGE, BLUE, WHITE = (213, 94, 0), (0, 114, 178), (255, 255, 255)


def draw(points, **options):
    return scatter(points, across="accuracy", up="leakage", line=(10.0, "guessing"), **options)


def centre(image, colour):
    left, top, right, bottom = box(image, colour)
    return (left + right) // 2, (top + bottom) // 2


def overlap(first, second):
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def test_alarming_points_are_discs_and_others_are_rings():
    image = draw({"": (50.0, 20.0, True), " ": (90.0, 12.0, False)})
    assert image.getpixel(centre(image, ORANGE)) == ORANGE
    assert image.getpixel(centre(image, BLUE)) == WHITE


def test_points_lie_where_their_values_are(texts):
    image = draw({"": (50.0, 20.0, True), " ": (90.0, 12.0, False)})
    (left, high), (right, low) = centre(image, ORANGE), centre(image, BLUE)
    assert left < right
    line = dict(texts)["guessing"][3]  # the name of the line stands above the line
    assert high < low < line
    assert (low - high) / (line - low) == pytest.approx(8 / 2, rel=0.25)


def test_many_points_at_one_place_are_all_named_without_overlap(texts):
    names = [f"defence {number}" for number in range(12)]
    image = draw(dict.fromkeys(names, (50.0, 20.0, True)))
    boxes = {text: label for text, label in texts if text in names}
    assert set(boxes) == set(names)
    assert not any(overlap(first, second) for first, second in combinations(boxes.values(), 2))
    assert not any(overlap(label, box(image, ORANGE)) for label in boxes.values())


def test_labels_stay_inside_the_picture(texts):
    image = draw({"a long name at the left": (0.0, 5.0, True), "a long name at the right": (100.0, 5.0, True)})
    for text, (left, top, right, bottom) in texts:
        assert 0 <= left <= right <= image.width, text
        assert 0 <= top <= bottom <= image.height, text


def test_the_legend_stands_above_the_points(texts):
    image = draw({"a": (50.0, 20.0, False)}, legend=("leaks", "does not leak", "better: right"))
    boxes = dict(texts)
    assert boxes["leaks"][2] < boxes["does not leak"][0] < boxes["does not leak"][2] < boxes["better: right"][0]
    disc = box(image, ORANGE)  # the only disc of this picture belongs to the legend
    assert disc[2] < boxes["leaks"][0]
    assert disc[1] < boxes["leaks"][3] < boxes["a"][1]


@pytest.mark.parametrize("values", [[0.0, 1.0], [93.2, 93.3], [5.0], [-3.0, 40.0], [1e-4, 2e-4]])
def test_axes_have_round_numbers_around_the_values(values):
    axis = round_numbers(values)
    assert axis[0] <= min(values)
    assert axis[-1] >= max(values)
    assert 2 <= len(axis) <= 10
    assert all(math.isfinite(value) for value in axis)


def test_points_that_are_not_finite_are_left_out(texts):
    draw({"a": (math.nan, 1.0, True), "b": (1.0, 1.0, True)})
    assert "a" not in dict(texts)
    assert "b" in dict(texts)


def test_a_plot_without_a_finite_point_is_refused():
    with pytest.raises(InvalidInput, match="at least one point"):
        draw({"a": (math.nan, 1.0, True)})


def test_pictures_stand_below_each_other():
    first, second = (Image.new("RGB", (4, height), colour) for height, colour in ((2, "red"), (3, "blue")))
    whole = stacked([first, second])
    assert whole.size == (4, 5)
    assert [whole.getpixel((0, y)) for y in range(5)] == [(255, 0, 0)] * 2 + [(0, 0, 255)] * 3
