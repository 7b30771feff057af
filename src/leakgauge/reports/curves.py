"""Line charts over the steps of attacks and over the trials of a hyper-parameter search.

:func:`loss_curves` draws losses on a logarithmic scale, like figure 2 of EPAFL (Tabassum et al. 2024).
:func:`running_minimum` draws the lowest value so far of a search on a logarithmic scale, like figure 1 of AWA (Song,
Wang, Zuazua 2023). :func:`course` draws the quality of the reconstruction at each step on a linear scale, like figure 4
of AWA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from PIL import Image
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.reports.drawing import COLOURS, GRID, INK, PAPER, Axes, Canvas, round_numbers

_STOP = (200, 30, 30)
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 20, 30, 48

Point = tuple[float, float]
Segment = tuple[Point, Point]


def loss_curves(
    curves: Mapping[str, Tensor],
    stops: Mapping[str, int] | None = None,
    *,
    size: tuple[int, int] = (760, 420),
    title: str = "",
) -> Image.Image:
    """Draw losses over the steps of attacks, on a logarithmic scale.

    Args:
        curves: A mapping from the name of each curve to its losses, one loss for each step. The curve has a gap at a
            loss that is not finite or not above zero.
        stops: A mapping from the name of a curve to the step at which the attack ended. A dashed line marks the step.
        size: The width and the height in pixels.
        title: The title of the picture.
    """
    points = {name: _logarithms(losses.flatten().tolist()) for name, losses in curves.items()}
    if not any(points.values()):
        raise InvalidInput("loss curves need at least one finite loss above zero")
    lines = {
        name: [(here, there) for here, there in pairwise(curve) if there[0] == here[0] + 1]
        for name, curve in points.items()
    }
    stops = stops or {}
    marks = [stops[name] for name in points if name in stops]
    return _draw(points, lines, _Chart(size, title or "loss", "step", marks))


def running_minimum(
    values: Mapping[str, Sequence[float]],
    guided: int | None = None,
    *,
    size: tuple[int, int] = (760, 420),
    title: str = "",
) -> Image.Image:
    """Draw the lowest value that a hyper-parameter search has found up to each trial, on a logarithmic scale.

    Args:
        values: A mapping from the name of each search to the values of its trials. Trials are counted from 1. A value
            that is not finite or not above zero, such as the value of a failed trial, is ignored.
        guided: The number of random trials, after which the guided trials begin. A dashed line marks this point.
        size: The width and the height in pixels.
        title: The title of the picture.
    """
    lowest = {
        name: accumulate((value if 0 < value < math.inf else math.inf for value in trials), min)
        for name, trials in values.items()
    }
    points = {name: _logarithms(minima, first=1) for name, minima in lowest.items()}
    if not any(points.values()):
        raise InvalidInput("a running minimum needs at least one finite value above zero")
    lines = {name: _stairs(curve) for name, curve in points.items()}
    marks = [] if guided is None else [guided + 0.5]
    chart = _Chart(size, title or "lowest value so far", "trial", marks, mark_sides=("random", "guided"))
    return _draw(points, lines, chart)


def course(
    values: Mapping[str, Mapping[int, float]], *, size: tuple[int, int] = (760, 300), title: str = ""
) -> Image.Image:
    """Draw the quality of the reconstruction, such as its PSNR, over the steps of attacks, on a linear scale.

    Args:
        values: A mapping from the name of each curve to a mapping from steps to values. Values that are not finite are
            left out.
        size: The width and the height in pixels.
        title: The title of the picture.
    """
    points = {
        name: [(float(step), value) for step, value in curve.items() if math.isfinite(value)]
        for name, curve in values.items()
    }
    if not any(points.values()):
        raise InvalidInput("the course of a quality needs at least one finite value")
    lines = {name: list(pairwise(curve)) for name, curve in points.items()}
    return _draw(points, lines, _Chart(size, title, "step", scale=_linear_scale))


def stacked(images: Sequence[Image.Image]) -> Image.Image:
    """Return one picture that shows all images, one below the other."""
    whole = Image.new("RGB", (max(image.width for image in images), sum(image.height for image in images)), PAPER)
    for place, image in enumerate(images):
        whole.paste(image, (0, sum(above.height for above in images[:place])))
    return whole


@dataclass(frozen=True)
class _Scale:
    """The values at the bottom and the top of the vertical axis, and the ticks of the axis with their labels."""

    low: float
    high: float
    ticks: list[tuple[float, str]]


def _logarithmic_scale(least: float, most: float) -> _Scale:
    """Return a logarithmic scale that begins and ends at whole powers of ten.

    ``least`` and ``most`` are the base-10 logarithms of the smallest and the largest value to show. There is a tick at
    each power of ten, or only at some powers if the scale is long. A short scale also has ticks at 2 and 5 times a
    power of ten.
    """
    low, high = math.floor(least), max(math.ceil(most), math.floor(least) + 1)
    ticks = [
        (exponent + math.log10(digit), f"{digit}e{exponent}")
        for exponent in range(low, high + 1, max(1, (high - low) // 6))
        for digit in ((1, 2, 5) if high - low <= 2 and exponent < high else (1,))
    ]
    return _Scale(low, high, ticks)


def _linear_scale(least: float, most: float) -> _Scale:
    """Return a linear scale that begins and ends at round numbers and contains both given values."""
    levels = round_numbers([least, most])
    return _Scale(levels[0], levels[-1], [(level, f"{level:.4g}") for level in levels])


@dataclass(frozen=True)
class _Chart:
    """The size, the titles, the scale and the marked steps of a line chart.

    Args:
        size: The width and the height in pixels.
        title: The title of the picture.
        x_title: The title of the horizontal axis.
        marks: The steps that are marked by a dashed line.
        mark_sides: The text to the left and the text to the right of each dashed line.
        scale: The function that returns the scale of the vertical axis for the lowest and the highest value.
    """

    size: tuple[int, int]
    title: str
    x_title: str
    marks: Sequence[float] = ()
    mark_sides: tuple[str, str] = ("", "")
    scale: Callable[[float, float], _Scale] = _logarithmic_scale


def _draw(points: Mapping[str, Sequence[Point]], lines: Mapping[str, Sequence[Segment]], chart: _Chart) -> Image.Image:
    """Draw a line chart. The axes have room for all ``points`` and ``lines``, but only the lines are drawn."""
    ends = [point for segments in lines.values() for segment in segments for point in segment]
    every = [*(point for curve in points.values() for point in curve), *ends]
    last = max(1, *(step for step, _ in every), *chart.marks)
    scale = chart.scale(min(y for _, y in every), max(y for _, y in every))
    (width, height), canvas = chart.size, Canvas(chart.size, font_size=13)
    axes = Axes(_LEFT, _TOP, width - _RIGHT, height - _BOTTOM, (0, last), (scale.low, scale.high))
    _draw_ticks(canvas, axes, scale)
    canvas.pen.line((axes.left, axes.top, axes.left, axes.bottom), fill=INK)
    canvas.pen.line((axes.left, axes.bottom, axes.right, axes.bottom), fill=INK)
    canvas.text((axes.left + axes.right) / 2, height - 14, chart.x_title, "mm")
    canvas.text(axes.left, axes.top / 2, chart.title, "lm")
    for mark in chart.marks:
        _draw_mark(canvas, axes, mark, chart.mark_sides)
    for number, (name, segments) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        for here, there in segments:
            canvas.pen.line((*axes.place(*here), *axes.place(*there)), fill=colour, width=2)
        if name:
            y = axes.top + 10 + 18 * number
            canvas.pen.line((axes.right - 150, y, axes.right - 126, y), fill=colour, width=3)
            canvas.text(axes.right - 120, y, name, "lm")
    return canvas.image


def _draw_ticks(canvas: Canvas, axes: Axes, scale: _Scale) -> None:
    for level, label in scale.ticks:
        y = axes.place(0, level)[1]
        canvas.pen.line((axes.left, y, axes.right, y), fill=GRID)
        canvas.text(axes.left - 8, y, label, "rm")
    last = int(axes.x_range[1])
    for step in range(0, last + 1, _round_step(last)):
        x = axes.place(step, scale.low)[0]
        canvas.pen.line((x, axes.bottom, x, axes.bottom + 4), fill=INK)
        canvas.text(x, axes.bottom + 14, str(step), "mm")


def _draw_mark(canvas: Canvas, axes: Axes, step: float, sides: tuple[str, str]) -> None:
    """Draw a dashed vertical line at a step, with one text to its left and one to its right."""
    x = axes.place(step, axes.y_range[1])[0]
    for y in range(axes.top, axes.bottom, 11):
        canvas.pen.line((x, y, x, min(y + 6, axes.bottom)), fill=_STOP)
    canvas.text(x - 6, axes.bottom - 10, sides[0], "rm")
    canvas.text(x + 6, axes.bottom - 10, sides[1], "lm")


def _logarithms(values: Iterable[float], first: int = 0) -> list[Point]:
    """Return pairs of a step and a base-10 logarithm, one for each value that is finite and above zero.

    The step of the first value is ``first``.
    """
    return [(step, math.log10(value)) for step, value in enumerate(values, first) if 0 < value < math.inf]


def _stairs(points: Sequence[Point]) -> list[Segment]:
    """Convert points to a staircase of horizontal and vertical lines.

    Each point becomes a horizontal line, which is as wide as one trial. Vertical lines join the horizontal lines.
    """
    levels = [((x - 0.5, y), (x + 0.5, y)) for x, y in points]
    return [*levels, *((left[1], right[0]) for left, right in pairwise(levels))]


def _round_step(last: int) -> int:
    """Return a distance between ticks so that there are about six ticks from 0 to ``last``.

    The distance is 1, 2 or 5 times a power of ten.

    >>> [_round_step(last) for last in (6, 7, 99, 4000)]
    [1, 2, 20, 1000]
    """
    power = 10 ** int(math.log10(max(1, last / 6)))
    return int(next(factor * power for factor in (1, 2, 5, 10) if last / (factor * power) <= 6.5))
