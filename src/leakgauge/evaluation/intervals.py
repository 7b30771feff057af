"""Confidence intervals, which are Student's t interval for a mean and Wilson's interval for a share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from leakgauge.core.errors import InvalidInput


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Args:
        mean: The estimate.
        low: The lower end of the interval. It is ``None`` for a single value, which has no interval.
        high: The upper end of the interval. It is ``None`` for a single value, which has no interval.
    """

    mean: float
    low: float | None
    high: float | None


def mean_interval(
    values: Tensor, confidence: float = 0.95, limits: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """Return the mean of the values with Student's t interval. A single value has no interval.

    Args:
        values: The values to average, (N,).
        confidence: The confidence of the interval.
        limits: The lowest and the highest possible value. The interval does not extend beyond them.

    >>> import torch
    >>> mean_interval(torch.tensor([1.0, 2.0, 3.0]))  # doctest: +ELLIPSIS
    Interval(mean=2.0, low=-0.484..., high=4.484...)
    >>> mean_interval(torch.tensor([5.0]))
    Interval(mean=5.0, low=None, high=None)
    """
    from scipy.special import stdtrit

    _check_confidence(confidence)
    count = values.numel()
    if count == 0:
        raise InvalidInput("no values were passed, so their mean is undefined")
    exact = values.detach().double()
    mean = exact.mean().item()
    if count == 1:
        return Interval(mean, None, None)
    margin = float(stdtrit(count - 1, (1 + confidence) / 2)) * exact.std().item() / math.sqrt(count)
    return Interval(mean, max(mean - margin, limits[0]), min(mean + margin, limits[1]))


def wilson_interval(successes: float, trials: int, confidence: float = 0.95) -> Interval:
    """Return a share with Wilson's score interval (Journal of the American Statistical Association 1927).

    The interval never extends beyond [0, 1]. Its width is above zero even if the share is 0 or 1.

    Args:
        successes: The number of successes.
        trials: The number of trials.
        confidence: The confidence of the interval.

    >>> wilson_interval(5, 10)  # doctest: +ELLIPSIS
    Interval(mean=0.5, low=0.236..., high=0.763...)
    """
    from scipy.special import ndtri

    _check_confidence(confidence)
    if trials < 1 or not 0 <= successes <= trials:
        raise InvalidInput(
            f"{successes} successes in {trials} trials are no share. Pass at least 1 trial and 0 to {trials} successes"
        )
    share = successes / trials
    square = float(ndtri((1 + confidence) / 2)) ** 2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    margin = math.sqrt(square * (share * (1 - share) / trials + square / (4 * trials**2))) / (1 + square / trials)
    # If the share is 0 or 1, one end equals the share. Rounding must not push this end past the share.
    return Interval(share, min(share, max(0.0, centre - margin)), max(share, min(1.0, centre + margin)))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1, not {confidence}")
