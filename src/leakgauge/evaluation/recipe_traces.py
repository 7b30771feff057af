"""Traces that defences leave in an update, for :mod:`leakgauge.evaluation.recipe_check`.

A client may use a defence that no capture names, such as the noise of a privacy library. The training is then not
repeated exactly, and the recipe may be right all the same.

- Noise has mean zero. The update is then as long along the replay as the replay, and the rest is spread evenly over the
  numbers of the update, whatever their size is.
- Pruning leaves out numbers. The other numbers are those of the replay.
- Quantisation leaves few different values.
- Clipping makes the update shorter, and keeps its direction.
- Cutting off large values leaves many numbers at one limit, as the percentile filter of NVFlare does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

#: The share of numbers that are exactly zero in a pruned update, and not in the replay.
PRUNED = 0.05
#: The largest ratio of the numbers of different values in a quantised update and in the replay, and the smallest size
#: of a tensor in which they are counted.
FEW_VALUES, ENOUGH = 0.1, 200
#: The largest relative distance of a clipped update from the replay's direction, where no order is unknown.
ROUNDED = 0.01
#: The smallest number of values at the limit at which large values were cut off.
CUT = 2
#: The rounding of numbers at this limit, which are differences of weights.
BOUND = 1e-3
#: The largest error of the update along the replay, in standard errors, and at least as a share.
STANDARD_ERRORS, LENGTH = 4.0, 0.05
#: The largest ratio of the root mean squares of noise in two tensors, and the smallest number of values of a tensor.
EVEN, TENSOR = 1.6, 100


@dataclass(frozen=True)
class Trace:
    """A sign of a defence in an update.

    Args:
        words: The defence in words. The text is empty if the update shows none.
        explains: Whether the recipe is right if the client has this defence.
    """

    words: str = ""
    explains: bool = False


def trace_of_defence(update: Tensor, replay: Tensor, parts: Mapping[str, int], limit: float) -> Trace:
    """Return what an update shows of a defence.

    Args:
        update: The update that the client sent.
        replay: The mean of replays of the client's training.
        parts: The number of values of each tensor of the update, in their order.
        limit: The largest distance of a replay from an update without a defence, as a share of the update's length.
    """
    kept = update != 0
    left_out = 1 - float(kept[replay != 0].double().mean()) if bool((replay != 0).any()) else 0.0
    if left_out > PRUNED and _distance(update[kept], replay[kept]) <= limit and _unbiased(update[kept], replay[kept]):
        return Trace(f"zeros in place of {left_out:.0%} of its numbers, as pruning leaves them", explains=True)
    cut = _cut_off(update, replay, limit)
    if cut:
        zeros = f", and zeros in place of {left_out:.0%} of its numbers" if left_out > PRUNED else ""
        return Trace(f"values that are cut off at {cut:.2g}{zeros}", explains=True)
    if _few_values(update, replay, parts):
        return Trace("few different values, as quantisation leaves them", _unbiased(update, replay))
    if _is_noise(update, replay, parts):
        share = float((update - replay).norm() / replay.norm())
        return Trace(f"noise of {share:.2g} times its length", True)
    length = float(update @ replay / replay.square().sum())
    if 0 < length < 1 - LENGTH and _distance(update, length * replay) <= max(limit * length, ROUNDED):
        return Trace(f"a length of {length:.3g} times the replayed one, as clipping or another learning rate leaves it")
    return Trace()


def _distance(one: Tensor, other: Tensor) -> float:
    length = float(one.norm())
    return float((one - other).norm()) / length if length else math.inf


def _cut_off(update: Tensor, replay: Tensor, limit: float) -> float:
    """Return the limit at which large values of the replay were cut off, or 0 if the update shows no such limit.

    The other numbers are those of the replay, or zeros.
    """
    bound = float(update.abs().max())
    at_bound = update.abs() >= bound * (1 - BOUND)
    below = ~at_bound & (update != 0)
    if int(at_bound.sum()) < CUT or not bool(below.any()):
        return 0.0
    along = replay[at_bound] * update[at_bound].sign()
    whole = bool((along >= bound * (1 - max(limit, BOUND))).all()) and bool((along > bound * (1 + BOUND)).any())
    return bound if whole and _distance(update[below], replay[below]) <= limit else 0.0


def _few_values(update: Tensor, replay: Tensor, parts: Mapping[str, int]) -> bool:
    """Return whether each large tensor of the update has far fewer different values than the replay."""
    sizes = list(parts.values())
    pairs = zip(update.split(sizes), replay.split(sizes), strict=True)
    counts = [(_values(one), _values(other)) for one, other in pairs if len(one) >= ENOUGH]
    return bool(counts) and all(few <= FEW_VALUES * many for few, many in counts)


def _values(part: Tensor) -> int:
    """Return the number of different values, up to the rounding of the returned weights."""
    return len((part / part.abs().max().clamp_min(1e-300)).round(decimals=4).unique())


def _unbiased(update: Tensor, replay: Tensor) -> bool:
    """Return whether the rest beside the replay has no part along the replay, beyond what random rounding has."""
    rest, square = update - replay, replay.square().sum()
    along = float(rest @ replay / square)
    error = float(rest.square().mean().sqrt() / square.sqrt())
    return abs(along) <= max(LENGTH, STANDARD_ERRORS * error)


def _is_noise(update: Tensor, replay: Tensor, parts: Mapping[str, int]) -> bool:
    """Return whether the rest beside the replay is spread evenly over tensors whose updates differ in size."""
    sizes = list(parts.values())
    rest = [part for part in (update - replay).split(sizes) if len(part) >= TENSOR]
    told = [part for part in replay.split(sizes) if len(part) >= TENSOR]
    if len(rest) < 2:
        return False
    roots = torch.stack([part.square().mean().sqrt() for part in rest])
    own = torch.stack([part.square().mean().sqrt() for part in told])
    evenly = float(roots.max()) <= EVEN * float(roots.min())
    return evenly and float(own.max()) > EVEN**2 * float(own.min()) and _unbiased(update, replay)
