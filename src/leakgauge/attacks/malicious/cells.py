"""The content of a trapped layer's gradient: the sum of the samples between two neighbouring thresholds.

The attacker sorts the rows that it sent by direction and threshold, and subtracts the gradients of neighbours. A row
with weights of its own is a direction by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Rows have the same direction if the cosine of their weights differs from 1 by less than this.
SAME = 1e-6
#: A threshold is never reached if it is this many times the range of all others above them.
FAR = 5.0
#: The largest number of levels of a rounded tensor.
LEVELS = 2**15
#: The standard deviation of the error of random rounding between two levels, averaged over all values.
DITHER = 0.41


@dataclass(frozen=True)
class Cells:
    """The sums of the samples in each trap.

    A cell's sum is the sum of ``strength * features`` over the samples in the trap.

    Args:
        sums: The sums of the features, (cells, features).
        strengths: The sums of the strengths.
        rows: The row whose gradient the samples of a cell have.
        directions: The index of the direction of each cell.
        looks: The weights of each direction, of length one.
        low: The lower threshold of each cell along its direction.
        high: The upper threshold.
        noise: The standard deviation of the error of a value of a sum.
        bias_noise: The standard deviation of the error of a strength.
    """

    sums: Tensor
    strengths: Tensor
    rows: Tensor
    directions: Tensor
    looks: Tensor
    low: Tensor
    high: Tensor
    noise: Tensor
    bias_noise: Tensor

    def homes(self, features: Tensor) -> Tensor:
        """Return the cell of each direction into which samples fall, or -1 below the lowest threshold.

        Args:
            features: The features of the samples, one row for each sample.
        """
        places = features @ self.looks.T
        homes = torch.full(places.shape, -1, dtype=torch.long, device=places.device)
        for direction in range(len(self.looks)):
            own = (self.directions == direction).nonzero().flatten()
            inside = (places[:, direction : direction + 1] >= self.low[own]) & (
                places[:, direction : direction + 1] < self.high[own]
            )
            homes[:, direction] = torch.where(inside.any(1), own[inside.int().argmax(1)], -1)
        return homes


def cells_of(sent: Tensor, gradient: Tensor, eps: float, rounded: bool = False) -> Cells:
    """Return the cells of a layer from the rows that were sent and their gradients.

    Args:
        sent: The weights and the bias of each row, with the bias in the last column.
        gradient: The gradients of the same rows, in any scale.
        eps: The relative error of a number of the message.
        rounded: Whether the client rounded each tensor to a few levels.
    """
    groups, silent = _directions(sent)
    noise, bias_noise = _noise(gradient, silent, rounded)
    sums: list[Tensor] = []
    rows: list[Tensor] = []
    directions: list[Tensor] = []
    looks: list[Tensor] = []
    low: list[Tensor] = []
    high: list[Tensor] = []
    sizes: list[Tensor] = []
    for group in groups:
        length = sent[group, :-1].norm(dim=1)
        thresholds = -sent[group, -1] / length
        order = thresholds.argsort()
        group, thresholds, length = group[order], thresholds[order], length[order]
        part = gradient[group]
        below = torch.cat([part[1:], torch.zeros_like(part[:1])])
        sums.append(part - below)
        sizes.append(part.abs().amax(1) + below.abs().amax(1))
        rows.append(group)
        directions.append(torch.full_like(group, len(looks)))
        looks.append(sent[group[0], :-1] / length[0])
        low.append(thresholds)
        high.append(torch.cat([thresholds[1:], thresholds.new_full((1,), torch.inf)]))
    joined = torch.cat(sums)
    rounding = eps * torch.cat(sizes)
    return Cells(
        joined[:, :-1],
        joined[:, -1],
        torch.cat(rows),
        torch.cat(directions),
        torch.stack(looks),
        torch.cat(low),
        torch.cat(high),
        (rounding.square() + 2 * noise**2).sqrt(),
        (rounding.square() + 2 * bias_noise**2).sqrt(),
    )


def _directions(sent: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the rows of each direction, and the row that is never active, if there is one."""
    length = sent[:, :-1].norm(dim=1).clamp_min(1e-30)
    looks, thresholds = sent[:, :-1] / length[:, None], -sent[:, -1] / length
    usual = thresholds[:-1].max() - thresholds[:-1].min()
    # The last row is never active if its threshold lies far above all others.
    silent = len(sent) > 2 and bool(thresholds[-1] - thresholds[:-1].max() > FAR * usual)
    rows = torch.arange(len(sent), device=sent.device)
    left, groups = torch.ones(len(sent), dtype=torch.bool, device=sent.device), []
    left[-1] = not silent
    alike = looks @ looks.T > 1 - SAME
    for row in rows.tolist():
        if bool(left[row]):
            groups.append(rows[alike[row] & left])
            left[groups[-1]] = False
    return groups, rows[-1:] if silent else rows[:0]


def _noise(gradient: Tensor, silent: Tensor, rounded: bool) -> tuple[float, float]:
    """Return the standard deviation of the noise on weights and on biases, from the row that is never active."""
    kernel, bias = gradient[:, :-1], gradient[:, -1]
    values = kernel[silent].flatten()
    drawn = float(values.std()) if len(values) > 1 else 0.0
    if not rounded:
        return drawn, drawn
    return max(drawn, DITHER * step_of(kernel)), max(drawn, DITHER * step_of(bias))


def step_of(values: Tensor) -> float:
    """Return the distance between the levels to which a tensor was rounded, or 0 if it was not rounded.

    Args:
        values: The tensor.
    """
    sizes = values.flatten().abs()
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return 0.0
    levels = (sizes / sizes.min()).round().unique()
    off = float((sizes / sizes.min() - (sizes / sizes.min()).round()).abs().max())
    return float(sizes.min()) if off < 1e-2 and len(levels) <= LEVELS else 0.0
