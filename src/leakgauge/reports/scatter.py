"""A scatter plot of named points, such as one point for each defence with its leakage and its accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from leakgauge.core.errors import InvalidInput
from leakgauge.reports.drawing import GRID, PAPER, Axes, Canvas, round_numbers

_SOFT = (110, 110, 110)
_LEAK, _SAFE = (213, 94, 0), (0, 114, 178)
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 30, 56, 56

#: A rectangle in pixels, as left, top, right and bottom.
Box = tuple[float, float, float, float]

# The places for the label of a point, in the order in which they are tried. A place is a side of the point (1 is right,
# -1 is left) and the number of pixels below the point. A label at a far place is joined to its point by a line.
_NEAR = [(side, offset) for side in (1, -1) for offset in (0.0, -9.6, 9.6)]
_FAR = [(side, sign * distance) for distance in range(18, 200, 18) for side in (1, -1) for sign in (-1.0, 1.0)]


def scatter(
    points: Mapping[str, tuple[float, float, bool]],
    *,
    across: str,
    up: str,
    line: tuple[float, str],
    title: str = "",
    legend: tuple[str, str, str] | None = None,
    seconds: Mapping[str, tuple[float, bool]] | None = None,
    size: tuple[int, int] = (860, 560),
) -> Image.Image:
    """Draw named points and a dashed horizontal line.

    A point that is marked as alarming is a filled orange disc. Any other point is a blue ring. Second values of points
    are squares, joined to their points by thin lines.

    Args:
        points: A mapping from the name of each point to its horizontal value, its vertical value, and whether it is
            alarming. Points with values that are not finite are left out.
        across: The title of the horizontal axis.
        up: The title of the vertical axis.
        line: The vertical value of the dashed line, and the name of the line.
        title: The title of the picture.
        legend: Three texts, which are the meaning of a disc, the meaning of a ring, and a remark. By default, there is
            no legend.
        seconds: A mapping from the names of points to a second vertical value, and whether it is alarming.
        size: The width and the height in pixels.
    """
    finite = {name: point for name, point in points.items() if all(map(math.isfinite, point[:2]))}
    if not finite:
        raise InvalidInput("a scatter plot needs at least one point with finite values")
    canvas = Canvas(size, font_size=14)
    x_ticks = round_numbers([x for x, _, _ in finite.values()])
    second = {name: one for name, one in (seconds or {}).items() if name in finite and math.isfinite(one[0])}
    y_ticks = round_numbers([line[0], *(y for _, y, _ in finite.values()), *(y for y, _ in second.values())])
    x_range, y_range = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])
    axes = Axes(_LEFT, _TOP, size[0] - _RIGHT, size[1] - _BOTTOM, x_range, y_range)
    _draw_ticks(canvas, axes, x_ticks, y_ticks)
    canvas.text((axes.left + axes.right) / 2, size[1] - 16, across, "mm")
    canvas.text(axes.left - 50, axes.top - 14, up, "lm")
    canvas.text(axes.left - 50, 16, title, "lm")
    if legend is not None:
        _draw_legend(canvas, legend, axes.right, axes.top - 14)
    level = axes.place(axes.x_range[0], line[0])[1]
    _draw_level(canvas, axes, level, line[1])
    places = {name: axes.place(x, y) for name, (x, y, _) in finite.items()}
    squares = {name: axes.place(finite[name][0], y) for name, (y, _) in second.items()}
    for name, (x, y) in squares.items():
        canvas.pen.line((*places[name], x, y), fill=_SOFT)
    line_name = (_LEFT, level - 20, _LEFT + 80, level)
    labels = _Labels(canvas, axes, [line_name, *_boxes(places.values()), *_boxes(squares.values())])
    for name, (x, y) in squares.items():
        _draw_point(canvas, x, y, alarming=second[name][1], square=True)
    for name, (x, y) in sorted(places.items(), key=lambda item: item[1][1]):
        _draw_point(canvas, x, y, alarming=finite[name][2])
        labels.write(name, x, y)
    return canvas.image


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return one picture with several pictures of equal width below each other.

    Args:
        pictures: The pictures, from the top to the bottom.
    """
    whole = Image.new("RGB", (pictures[0].width, sum(picture.height for picture in pictures)), PAPER)
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    return whole


def _draw_ticks(canvas: Canvas, axes: Axes, x_ticks: list[float], y_ticks: list[float]) -> None:
    (x_low, x_high), (y_low, y_high) = axes.x_range, axes.y_range
    for x in x_ticks:
        canvas.pen.line((*axes.place(x, y_low), *axes.place(x, y_high)), fill=GRID)
        canvas.text(axes.place(x, y_low)[0], axes.bottom + 14, f"{x:g}", "mm")
    for y in y_ticks:
        canvas.pen.line((*axes.place(x_low, y), *axes.place(x_high, y)), fill=GRID)
        canvas.text(axes.left - 8, axes.place(x_low, y)[1], f"{y:g}", "rm")


def _draw_level(canvas: Canvas, axes: Axes, level: float, name: str) -> None:
    """Draw the dashed horizontal line, with its name above its left end."""
    for x in range(axes.left, axes.right, 10):
        canvas.pen.line((x, level, min(x + 6, axes.right), level), fill=_SOFT)
    canvas.text(axes.left + 4, level - 10, name, "lm", _SOFT)


def _boxes(places: Iterable[tuple[float, float]]) -> list[Box]:
    """Return the rectangles that points take."""
    return [(x - 7, y - 7, x + 7, y + 7) for x, y in places]


def _draw_point(canvas: Canvas, x: float, y: float, *, alarming: bool, square: bool = False) -> None:
    box = (x - 6, y - 6, x + 6, y + 6)
    draw = canvas.pen.rectangle if square else canvas.pen.ellipse
    draw(box, fill=_LEAK if alarming else PAPER, outline=_LEAK if alarming else _SAFE, width=3)


def _draw_legend(canvas: Canvas, legend: tuple[str, str, str], right: float, y: float) -> None:
    """Draw the legend in one line that ends at ``right``."""
    for text, alarming in zip(reversed(legend), (None, False, True), strict=True):
        canvas.text(right, y, text, "rm")
        right -= canvas.text_width(text) + 12
        if alarming is not None:
            _draw_point(canvas, right, y, alarming=alarming)
            right -= 12
        right -= 8


@dataclass(frozen=True)
class _Labels:
    """The names of points on a chart. Each name is written where nothing else is drawn, if possible.

    Args:
        canvas: The canvas to write on.
        axes: The axes. Every name lies between their top and their bottom.
        taken: The rectangles in which something is already drawn.
    """

    canvas: Canvas
    axes: Axes
    taken: list[Box]

    def write(self, text: str, x: float, y: float) -> None:
        """Write the name of a point beside the point, or farther away with a line to the point.

        If no place is free, write the name beside the point, over other things.
        """
        width = self.canvas.text_width(text)
        for number, (side, offset) in enumerate((*_NEAR, *_FAR)):
            left, middle = x + 11 if side > 0 else x - 11 - width, y + offset
            box = (left, middle - 9, left + width, middle + 9)
            if self._is_free(box):
                if number >= len(_NEAR):
                    self.canvas.pen.line((x, y, left if side > 0 else left + width, middle), fill=_SOFT)
                self.canvas.text(left, middle, text, "lm")
                self.taken.append(box)
                return
        self.canvas.text(x + 11, y, text, "lm")

    def _is_free(self, box: Box) -> bool:
        left, top, right, bottom = box
        inside = left > 2 and right < self.canvas.image.width - 2 and top > self.axes.top - 6
        return inside and bottom < self.axes.bottom and not any(_overlap(box, other) for other in self.taken)


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]
