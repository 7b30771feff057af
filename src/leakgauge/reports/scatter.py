"""Named points between two axes: what is bought against what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from PIL import Image, ImageDraw, ImageFont

from leakgauge.core.errors import InvalidInput

_INK, _PAPER, _GRID, _SOFT = (32, 33, 36), (255, 255, 255), (225, 225, 225), (110, 110, 110)
_LEAK, _SAFE = (213, 94, 0), (0, 114, 178)
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 30, 56, 56


def scatter(
    points: Mapping[str, tuple[float, float, bool]],
    *,
    across: str,
    up: str,
    line: tuple[float, str],
    title: str = "",
    legend: tuple[str, str, str] | None = None,
    size: tuple[int, int] = (860, 560),
) -> Image.Image:
    """``{name: (x, y, alarming)}`` with a dashed level line and its name.

    What alarms is a filled disc in orange, the rest a ring in blue: distinct without colours too. ``legend`` says what
    each of the two means, and where the better points are.
    """
    finite = {name: point for name, point in points.items() if all(map(math.isfinite, point[:2]))}
    if not finite:
        raise InvalidInput("a scatter plot needs at least one finite point")
    width, height = size
    image = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=14)
    x_axis = round_numbers([x for x, _, _ in finite.values()])
    y_axis = round_numbers([line[0], *(y for _, y, _ in finite.values())])

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (width - _LEFT - _RIGHT) * (x - x_axis[0]) / (x_axis[-1] - x_axis[0]),
            _TOP + (height - _TOP - _BOTTOM) * (y_axis[-1] - y) / (y_axis[-1] - y_axis[0]),
        )

    for x in x_axis:
        draw.line((*place(x, y_axis[0]), *place(x, y_axis[-1])), fill=_GRID)
        draw.text((place(x, y_axis[0])[0], height - _BOTTOM + 14), f"{x:g}", _INK, font, anchor="mm")
    for y in y_axis:
        draw.line((*place(x_axis[0], y), *place(x_axis[-1], y)), fill=_GRID)
        draw.text((_LEFT - 8, place(x_axis[0], y)[1]), f"{y:g}", _INK, font, anchor="rm")
    draw.text(((_LEFT + width - _RIGHT) / 2, height - 16), across, _INK, font, anchor="mm")
    draw.text((_LEFT - 50, _TOP - 14), up, _INK, font, anchor="lm")
    draw.text((_LEFT - 50, 16), title, _INK, font, anchor="lm")
    if legend is not None:
        _legend(draw, font, legend, width - _RIGHT, _TOP - 14)
    level = place(x_axis[0], line[0])[1]
    for x in range(_LEFT, width - _RIGHT, 10):
        draw.line((x, level, min(x + 6, width - _RIGHT), level), fill=_SOFT)
    draw.text((_LEFT + 4, level - 10), line[1], _SOFT, font, anchor="lm")
    taken: list[tuple[float, float, float, float]] = [(_LEFT, level - 20, _LEFT + 80, level)]
    places = {name: place(x, y) for name, (x, y, _) in finite.items()}
    taken += [(x - 7, y - 7, x + 7, y + 7) for x, y in places.values()]
    for name, (x, y) in sorted(places.items(), key=lambda item: item[1][1]):
        alarming = finite[name][2]
        _mark(draw, x, y, alarming)
        _label(draw, font, name, x, y, taken, (width, height))
    return image


def _mark(draw: ImageDraw.ImageDraw, x: float, y: float, alarming: bool) -> None:
    box = (x - 6, y - 6, x + 6, y + 6)
    draw.ellipse(box, fill=_LEAK if alarming else _PAPER, outline=_LEAK if alarming else _SAFE, width=3)


def _legend(
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    words: tuple[str, str, str],
    right: float,
    y: float,
) -> None:
    """What the marks mean, from right to left."""
    for text, alarming in zip(reversed(words), (None, False, True), strict=True):
        draw.text((right, y), text, _INK, font, anchor="rm")
        right -= draw.textlength(text, font) + 12
        if alarming is not None:
            _mark(draw, right, y, alarming)
            right -= 12
        right -= 8


def _label(
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    text: str,
    x: float,
    y: float,
    taken: list[tuple[float, float, float, float]],
    size: tuple[int, int],
) -> None:
    """Write a name beside its point, where nothing else is; farther away, with a line, if need be."""
    long = draw.textlength(text, font)
    for distance in range(0, 200, 18):
        for side in (1, -1):
            for turn in (0, -1, 1) if distance == 0 else (-1, 1):
                middle = y + turn * (distance or 12) * (1 if distance else 0.8)
                left = x + 11 if side > 0 else x - 11 - long
                box = (left, middle - 9, left + long, middle + 9)
                inside = box[0] > 2 and box[2] < size[0] - 2 and box[1] > _TOP - 6 and box[3] < size[1] - _BOTTOM
                if inside and not any(_overlap(box, other) for other in taken):
                    if distance:
                        draw.line((x, y, left if side > 0 else left + long, middle), fill=_SOFT)
                    draw.text((left, middle), text, _INK, font, anchor="lm")
                    taken.append(box)
                    return
    draw.text((x + 11, y), text, _INK, font, anchor="lm")


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def round_numbers(values: list[float]) -> list[float]:
    """Round numbers around the values, some six of them."""
    low, high = min(values), max(values)
    span = max(high - low, 1e-3 * max(1.0, abs(high)))
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 6)
    first, last = math.floor(low / step - 0.1), math.ceil(high / step + 0.1)
    first = max(first, 0) if low >= 0 else first
    return [number * step for number in range(first, last + 1)]
