"""The colours, the canvas and the axes that all drawings use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
#: The point of a text that is placed at a position. It is the left end, the middle or the right end of the text, always
#: at half of the height.
Anchor = Literal["lm", "mm", "rm"]

INK: Colour = (32, 33, 36)
PAPER: Colour = (255, 255, 255)
GRID: Colour = (225, 225, 225)
#: People who cannot tell red from green can still tell these colours of Okabe and Ito apart.
COLOURS: tuple[Colour, ...] = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
)


class Canvas:
    """An empty image to draw on, with a font for texts.

    Args:
        size: The width and the height in pixels.
        font_size: The size of the font in pixels.
    """

    def __init__(self, size: tuple[int, int], font_size: int) -> None:
        self.image = Image.new("RGB", size, PAPER)
        self.pen = ImageDraw.Draw(self.image)
        self.font = ImageFont.load_default(size=font_size)

    def text(self, x: float, y: float, text: str, anchor: Anchor, colour: Colour = INK) -> None:
        """Write a text on the image.

        Args:
            x: The column of the anchor in pixels, counted from the left.
            y: The row of the anchor in pixels, counted from the top.
            text: The text to write.
            anchor: The point of the text that is placed at ``x`` and ``y``, as Pillow names it, such as ``"mm"`` for
                the middle.
            colour: The colour of the text.
        """
        self.pen.text((x, y), text, colour, self.font, anchor=anchor)

    def text_width(self, text: str) -> float:
        """Return the width of a text in pixels."""
        return self.pen.textlength(text, self.font)


@dataclass(frozen=True)
class Axes:
    """The rectangle of a chart inside its image, and the values at the sides of the rectangle.

    Args:
        left: The first column of pixels.
        top: The first row of pixels.
        right: The last column of pixels.
        bottom: The last row of pixels.
        x_range: The values at the left side and at the right side.
        y_range: The values at the bottom and at the top.
    """

    left: int
    top: int
    right: int
    bottom: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Convert values on the two axes to a position in pixels, counted from the left and the top of the image."""
        (x_low, x_high), (y_low, y_high) = self.x_range, self.y_range
        return (
            self.left + (self.right - self.left) * (x - x_low) / (x_high - x_low),
            self.top + (self.bottom - self.top) * (y_high - y) / (y_high - y_low),
        )


def round_numbers(values: list[float]) -> list[float]:
    """Return about six round numbers at equal distances, which cover the range of the given values.

    >>> round_numbers([12.0, 31.0])
    [10.0, 15.0, 20.0, 25.0, 30.0, 35.0]
    """
    low, high = min(values), max(values)
    span = max(high - low, 1e-3 * max(1.0, abs(high)))
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 6)
    first, last = math.floor(low / step - 0.1), math.ceil(high / step + 0.1)
    first = max(first, 0) if low >= 0 else first
    return [number * step for number in range(first, last + 1)]
