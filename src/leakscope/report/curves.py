"""Losses as curves over the steps of an attack, on a logarithmic scale (figure 2 of EPAFL)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from leakscope.errors import InvalidInput

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
    points = {name: _points(losses) for name, losses in curves.items()}
    every = [point for one in points.values() for point in one]
    if not every:
        raise InvalidInput("loss curves need at least one finite loss above zero")
    stops = stops or {}
    last = max(1, *(step for step, _ in every), *stops.values())
    low, high = math.floor(min(y for _, y in every)), math.ceil(max(y for _, y in every))
    high = max(high, low + 1)
    width, height = size
    image = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=13)

    def place(step: float, exponent: float) -> tuple[float, float]:
        x = _LEFT + (width - _LEFT - _RIGHT) * step / last
        return x, _TOP + (height - _TOP - _BOTTOM) * (high - exponent) / (high - low)

    for exponent in range(low, high + 1, max(1, (high - low) // 6)):
        y = place(0, exponent)[1]
        draw.line((_LEFT, y, width - _RIGHT, y), fill=_GRID)
        draw.text((_LEFT - 8, y), f"1e{exponent}", _INK, font, anchor="rm")
    for step in range(0, last + 1, _round_step(last)):
        x = place(step, low)[0]
        draw.line((x, height - _BOTTOM, x, height - _BOTTOM + 4), fill=_INK)
        draw.text((x, height - _BOTTOM + 14), str(step), _INK, font, anchor="mm")
    draw.line((_LEFT, _TOP, _LEFT, height - _BOTTOM), fill=_INK)
    draw.line((_LEFT, height - _BOTTOM, width - _RIGHT, height - _BOTTOM), fill=_INK)
    draw.text(((_LEFT + width - _RIGHT) / 2, height - 14), "step", _INK, font, anchor="mm")
    draw.text((_LEFT, _TOP / 2), title or "loss", _INK, font, anchor="lm")
    for number, (name, one) in enumerate(points.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for (step, y), (next_step, next_y) in pairwise(one):
            if next_step == step + 1:
                draw.line((*place(step, y), *place(next_step, next_y)), fill=colour, width=2)
        if name in stops:
            _dashed(draw, place(stops[name], high)[0], _TOP, height - _BOTTOM)
        y = _TOP + 10 + 18 * number
        draw.line((width - _RIGHT - 150, y, width - _RIGHT - 126, y), fill=colour, width=3)
        draw.text((width - _RIGHT - 120, y), name, _INK, font, anchor="lm")
    return image


def _points(losses: Tensor) -> list[tuple[int, float]]:
    """The steps at which there is a logarithm, and that."""
    values = torch.as_tensor(losses).double().flatten()
    return [(step, math.log10(value)) for step, value in enumerate(values.tolist()) if 0 < value < math.inf]


def _round_step(last: int) -> int:
    """A distance of about six marks up to ``last``: 1, 2 or 5 times a power of ten."""
    power = 10 ** int(math.log10(max(1, last / 6)))
    return int(next(factor * power for factor in (1, 2, 5, 10) if last / (factor * power) <= 6.5))


def _dashed(draw: ImageDraw.ImageDraw, x: float, top: float, bottom: float) -> None:
    y = top
    while y < bottom:
        draw.line((x, y, x, min(y + 6, bottom)), fill=_STOP)
        y += 11
