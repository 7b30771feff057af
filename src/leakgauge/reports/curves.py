"""Curves: losses over the steps of an attack (figure 2 of EPAFL) and the lowest value over the trials of a search
(figure 1 of AWA), on a logarithmic scale; how good an attack was on the way (figure 4 of AWA), on a plain one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.reports.scatter import round_numbers

_INK, _PAPER, _GRID, _STOP = (32, 33, 36), (255, 255, 255), (225, 225, 225), (200, 30, 30)
#: Distinct also without red and green (Okabe and Ito).
_COLOURS = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0))
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 20, 30, 48


def loss_curves(
    curves: Mapping[str, Tensor],
    stops: Mapping[str, int] | None = None,
    *,
    size: tuple[int, int] = (760, 420),
    title: str = "",
) -> Image.Image:
    """One curve a title, ``{title: losses step by step}``; ``stops`` marks the step at which an attack ended.

    Losses that are not above zero or not finite leave a gap.
    """
    points = {name: _points(losses.flatten().tolist()) for name, losses in curves.items()}
    if not any(points.values()):
        raise InvalidInput("loss curves need at least one finite loss above zero")
    lines = {
        name: [(here, there) for here, there in pairwise(one) if there[0] == here[0] + 1]
        for name, one in points.items()
    }
    stops = stops or {}
    return _draw(points, lines, [stops[name] for name in points if name in stops], size, title or "loss", "step")


def running_minimum(
    values: Mapping[str, Sequence[float]],
    guided: int | None = None,
    *,
    size: tuple[int, int] = (760, 420),
    title: str = "",
) -> Image.Image:
    """The lowest value up to each trial, one staircase a title, ``{title: values trial by trial}``, counted from 1.

    ``guided`` is the number of random trials, after which a dashed line marks where the guided ones begin. A value that
    is not above zero or not finite, as of a trial that failed, lowers nothing.
    """
    lowest = {
        name: accumulate((value if 0 < value < math.inf else math.inf for value in one), min)
        for name, one in values.items()
    }
    points = {name: _points(one, first=1) for name, one in lowest.items()}
    if not any(points.values()):
        raise InvalidInput("a running minimum needs at least one finite value above zero")
    lines = {name: _stairs(one) for name, one in points.items()}
    marks = [] if guided is None else [guided + 0.5]
    return _draw(points, lines, marks, size, title or "lowest value so far", "trial", ("random", "guided"))


def course(
    values: Mapping[str, Mapping[int, float]], *, size: tuple[int, int] = (760, 300), title: str = ""
) -> Image.Image:
    """A quality over the steps of attacks, ``{title: {step: value}}``; values that are not finite are left out."""
    points = {
        name: [(float(step), value) for step, value in one.items() if math.isfinite(value)]
        for name, one in values.items()
    }
    if not any(points.values()):
        raise InvalidInput("the course of a quality needs at least one finite value")
    lines = {name: list(pairwise(one)) for name, one in points.items()}
    return _draw(points, lines, [], size, title, "step", axis_of=_plain_axis)


def stacked(images: Sequence[Image.Image]) -> Image.Image:
    """Pictures under each other."""
    whole = Image.new("RGB", (max(one.width for one in images), sum(one.height for one in images)), _PAPER)
    for place, one in enumerate(images):
        whole.paste(one, (0, sum(before.height for before in images[:place])))
    return whole


Point = tuple[float, float]
#: From where to where an axis goes, and its marks with their words.
Axis = tuple[float, float, list[tuple[float, str]]]


def _draw(
    points: Mapping[str, Sequence[Point]],
    lines: Mapping[str, Sequence[tuple[Point, Point]]],
    marks: Sequence[float],
    size: tuple[int, int],
    title: str,
    axis: str,
    sides: tuple[str, str] = ("", ""),
    axis_of: Callable[[float, float], Axis] | None = None,
) -> Image.Image:
    """Axes around the points, lines in the colour of their name, and a dashed line a mark with words on its sides."""
    every = [point for one in points.values() for point in one]
    every += [point for one in lines.values() for line in one for point in line]
    last = max(1, *(step for step, _ in every), *marks)
    low, high, ticks = (axis_of or _logarithmic_axis)(min(y for _, y in every), max(y for _, y in every))
    width, height = size
    image = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=13)

    def place(step: float, level: float) -> tuple[float, float]:
        x = _LEFT + (width - _LEFT - _RIGHT) * step / last
        return x, _TOP + (height - _TOP - _BOTTOM) * (high - level) / (high - low)

    for level, words in ticks:
        y = place(0, level)[1]
        draw.line((_LEFT, y, width - _RIGHT, y), fill=_GRID)
        draw.text((_LEFT - 8, y), words, _INK, font, anchor="rm")
    for step in range(0, int(last) + 1, _round_step(int(last))):
        x = place(step, low)[0]
        draw.line((x, height - _BOTTOM, x, height - _BOTTOM + 4), fill=_INK)
        draw.text((x, height - _BOTTOM + 14), str(step), _INK, font, anchor="mm")
    draw.line((_LEFT, _TOP, _LEFT, height - _BOTTOM), fill=_INK)
    draw.line((_LEFT, height - _BOTTOM, width - _RIGHT, height - _BOTTOM), fill=_INK)
    draw.text(((_LEFT + width - _RIGHT) / 2, height - 14), axis, _INK, font, anchor="mm")
    draw.text((_LEFT, _TOP / 2), title, _INK, font, anchor="lm")
    for mark in marks:
        x = place(mark, high)[0]
        _dashed(draw, x, _TOP, height - _BOTTOM)
        draw.text((x - 6, height - _BOTTOM - 10), sides[0], _INK, font, anchor="rm")
        draw.text((x + 6, height - _BOTTOM - 10), sides[1], _INK, font, anchor="lm")
    for number, (name, parts) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for here, there in parts:
            draw.line((*place(*here), *place(*there)), fill=colour, width=2)
        if not name:
            continue
        y = _TOP + 10 + 18 * number
        draw.line((width - _RIGHT - 150, y, width - _RIGHT - 126, y), fill=colour, width=3)
        draw.text((width - _RIGHT - 120, y), name, _INK, font, anchor="lm")
    return image


def _logarithmic_axis(least: float, most: float) -> Axis:
    """Whole powers of ten around two exponents, and what lies between them where they are few."""
    low, high = math.floor(least), max(math.ceil(most), math.floor(least) + 1)
    ticks = [
        (exponent + math.log10(digit), f"{digit}e{exponent}")
        for exponent in range(low, high + 1, max(1, (high - low) // 6))
        for digit in ((1, 2, 5) if high - low <= 2 and exponent < high else (1,))
    ]
    return low, high, ticks


def _plain_axis(least: float, most: float) -> Axis:
    """Round numbers around two values."""
    levels = round_numbers([least, most])
    return levels[0], levels[-1], [(level, f"{level:.4g}") for level in levels]


def _points(values: Iterable[float], first: int = 0) -> list[Point]:
    """The steps at which there is a logarithm, and that."""
    return [(step, math.log10(value)) for step, value in enumerate(values, first) if 0 < value < math.inf]


def _stairs(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Each point as wide as a trial, and the falls between them."""
    levels = [((x - 0.5, y), (x + 0.5, y)) for x, y in points]
    return [*levels, *((left[1], right[0]) for left, right in pairwise(levels))]


def _round_step(last: int) -> int:
    """A distance of about six marks up to ``last``: 1, 2 or 5 times a power of ten."""
    power = 10 ** int(math.log10(max(1, last / 6)))
    return int(next(factor * power for factor in (1, 2, 5, 10) if last / (factor * power) <= 6.5))


def _dashed(draw: ImageDraw.ImageDraw, x: float, top: float, bottom: float) -> None:
    y = top
    while y < bottom:
        draw.line((x, y, x, min(y + 6, bottom)), fill=_STOP)
        y += 11
