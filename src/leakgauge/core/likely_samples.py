"""Samples that a server can draw without any client's data, from which it chooses the thresholds of traps."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.data_spec import DataSpec

#: The power with which the spectrum of natural pictures falls with the frequency.
FALL = 1.5


def likely_samples(data: DataSpec, count: int, seed: int) -> Tensor:
    """Return random samples of the given description, in its units.

    Pictures and series have a spectrum that falls with the frequency, as natural pictures do (Field 1987), and a random
    brightness and contrast. The values of a table are normally distributed.

    Args:
        data: The description of the samples.
        count: The number of samples.
        seed: The seed of the draws.
    """
    draw = torch.Generator().manual_seed(seed)
    mean, std = data.statistics(torch.zeros(1, dtype=torch.double))
    if not data.is_image:
        drawn = mean + std * torch.randn(count, *data.shape, generator=draw, dtype=torch.double)
        return drawn.clamp(0, 1) if data.bounded else drawn
    channels, height, width = data.shape
    rows, columns = torch.fft.fftfreq(height), torch.fft.rfftfreq(width)
    frequency = (rows[:, None].square() + columns.square()).sqrt().clamp_min(1 / max(height, width))
    noise = torch.randn(count, channels, height, width, generator=draw, dtype=torch.double)
    shared = torch.randn(count, 1, height, width, generator=draw, dtype=torch.double)
    spectrum = torch.fft.rfft2(0.4 * noise + shared) / frequency.double() ** FALL
    pictures = torch.fft.irfft2(spectrum, s=(height, width))
    pictures = pictures - pictures.flatten(1).mean(1).reshape(-1, 1, 1, 1)
    pictures = pictures / pictures.flatten(1).std(1).reshape(-1, 1, 1, 1)
    brightness = torch.rand(count, 1, 1, 1, generator=draw, dtype=torch.double)
    contrast = 0.1 + 0.25 * torch.rand(count, 1, 1, 1, generator=draw, dtype=torch.double)
    finished: Tensor = (0.15 + 0.7 * brightness + contrast * pictures).clamp(0, 1)
    return finished
