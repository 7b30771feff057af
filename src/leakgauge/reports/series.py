"""Drawings of series in time, with the true, the rebuilt and the guessed series of a sample below each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from leakgauge.core.data_spec import DataSpec
from leakgauge.reports.drawing import COLOURS, PAPER, Axes
from leakgauge.reports.page import Section
from leakgauge.reports.pictures import contact_sheet, to_png

#: The number of samples and the number of channels that are drawn.
SHOWN, CHANNELS = 6, 6
_SIZE = 170


def has_lines(spec: DataSpec) -> bool:
    """Return whether samples are drawn as line charts.

    Samples of two dimensions without a time axis count as (channels, time).

    Args:
        spec: The description of the data.
    """
    return spec.is_series or len(spec.shape) == 2


def series_section(
    heading: str,
    sentence: str,
    spec: DataSpec,
    rows: Mapping[str, Tensor],
    right: Tensor | None = None,
) -> Section:
    """Return a section of a page with line charts of series, the best recovered ones first.

    Args:
        heading: The heading.
        sentence: What was attacked, and how.
        spec: The description of the data.
        rows: A dictionary from the title of a row, such as ``"rebuilt"``, to its series, (N, *shape). The first row
            sets the scale of the charts.
        right: The share of values of each sample that came back, (N,). ``None`` if it is not known.
    """
    count = max(len(samples) for samples in rows.values())
    order = torch.arange(count) if right is None else right.argsort(descending=True, stable=True)
    captions = {} if right is None else {"rebuilt": [f"{float(right[row]):.0%} right" for row in order[:SHOWN]]}
    colours = min(spec.channels, CHANNELS)
    which = f"the first {colours} of {spec.channels} channels" if colours < spec.channels else "all channels"
    words = f"{sentence} Each chart shows {which} over time, in standard deviations of each channel."
    return Section(
        heading,
        (words,),
        picture=charts_of({title: samples[order[:SHOWN]] for title, samples in rows.items()}, spec, captions),
        shows_samples=True,
        alt=f"line charts of series: {', '.join(rows)}",
    )


def charts_of(rows: Mapping[str, Tensor], spec: DataSpec, captions: Mapping[str, Sequence[str]] | None = None) -> bytes:
    """Return a PNG picture with the line chart of each series.

    Args:
        rows: A dictionary from the title of a row to its series, (N, *shape). All charts of a sample have the scale of
            its chart in the first row.
        spec: The description of the data.
        captions: A mapping from the title of a row to the texts below its charts.
    """
    lines = {title: _by_channel(samples, spec) for title, samples in rows.items()}
    scales = [_scale(sample) for sample in next(iter(lines.values()))]
    drawn = {
        title: torch.stack([_chart(sample, scale) for sample, scale in zip(samples, scales, strict=True)])
        for title, samples in lines.items()
    }
    return to_png(contact_sheet(drawn, captions, size=_SIZE, columns=3))


def _by_channel(samples: Tensor, spec: DataSpec) -> Tensor:
    """Return normalised series of shape (N, channels, time), with the first channels only."""
    values = spec.normalise(samples.detach().cpu().float())
    if len(spec.shape) == 1:
        values = values.unsqueeze(1)
    elif spec.time_axis == 0:
        values = values.transpose(1, 2)
    return values[:, :CHANNELS]


def _scale(sample: Tensor) -> tuple[float, float]:
    """Return the lowest and the highest value of a chart."""
    finite = sample[sample.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 1.0)
    margin = 0.15 * (high - low) + 0.1
    return low - margin, high + margin


def _chart(sample: Tensor, scale: tuple[float, float]) -> Tensor:
    """Draw the lines of one series, and return the pixels, (3, height, width)."""
    image = Image.new("RGB", (_SIZE, _SIZE), PAPER)
    pen = ImageDraw.Draw(image)
    axes = Axes(2, 2, _SIZE - 3, _SIZE - 3, (0.0, max(1.0, sample.shape[1] - 1.0)), scale)
    for values, colour in zip(sample.tolist(), COLOURS, strict=False):
        points = [axes.place(step, min(max(value, scale[0]), scale[1])) for step, value in enumerate(values)]
        for (step, start), end in zip(enumerate(points), points[1:], strict=False):
            if isfinite(values[step]) and isfinite(values[step + 1]):
                pen.line((start, end), fill=colour)
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
