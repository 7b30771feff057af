r"""Traps in a dense layer: rows that few samples activate.

*Thresholds.* All rows of one direction :math:`u` look at the same number :math:`u \cdot f` of a sample with the
features :math:`f`, and each has a threshold of its own (Fowl et al. 2022). A row is active for the samples above its
threshold. The difference between the gradients of two neighbours therefore comes from the samples between their
thresholds. The thresholds are quantiles of samples that the server has, such that the same number of samples lies
between each two. The columns of the next layer are all equal, so that a sample has the same gradient at every row.

*Half-negative rows.* Each row has weights of its own, of which half are negative and a little larger, so that few
samples activate the row (Boenisch et al. 2023). The next layer stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.malicious.prediction import Split
from leakgauge.core.errors import InvalidInput

#: The largest number of principal components from which directions are drawn.
COMPONENTS = 24
#: The number of values of samples above which the principal directions are computed by a randomised method, with its
#: spare directions and its passes over the samples.
LARGE, SPARE, PASSES = 20_000_000, 10, 3
#: How far the lowest threshold lies below all samples of the server, as a share of their range.
MARGIN = 0.5
#: How far the threshold of the row that is never active lies above all others, as a multiple of their range.
SILENT = 20.0


@dataclass(frozen=True)
class Rows:
    """The weights and biases of a trapped dense layer.

    Args:
        weight: The weights, (rows, features).
        bias: The biases.
    """

    weight: Tensor
    bias: Tensor


def threshold_rows(features: Tensor, rows: int, split: Split, samples: int, draw: torch.Generator) -> Rows:
    """Return rows whose thresholds split samples into equally likely groups, along several directions.

    The last row is never active. Its gradient shows the noise of a defence.

    Args:
        features: The features of samples that the server has.
        rows: The number of rows.
        split: How the rows are split among directions.
        samples: The number of samples of a client.
        draw: The generator of the directions.
    """
    directions = split.directions
    if rows < directions + 1:
        raise InvalidInput(f"{directions} directions need at least {directions + 1} rows, not {rows}")
    looks = spread_directions(features, directions + (split.common > 0), draw)
    if split.common:
        looks = split.common**0.5 * looks[-1] + (1 - split.common) ** 0.5 * looks[:-1]
    caught = split.caught(rows - 1, samples)
    weight, bias = features.new_zeros(rows, features.shape[1]), features.new_zeros(rows)
    each, extra = divmod(rows - 1, directions)
    first = 0
    for number, look in enumerate(looks):
        size = each + (number < extra)
        values = features @ look
        levels = torch.arange(size, dtype=values.dtype, device=values.device) / size
        thresholds = torch.quantile(values, 1 - caught + caught * levels)
        if caught == 1:
            thresholds[0] = values.min() - MARGIN * (values.max() - values.min())
        weight[first : first + size] = look
        bias[first : first + size] = -thresholds
        first += size
    weight[-1] = looks[0]
    size = looks[0].norm()
    reach = (-bias[:-1] / weight[:-1].norm(dim=1)).aminmax()
    bias[-1] = -size * (reach.max + SILENT * (reach.max - reach.min).clamp_min(1 / size))
    return Rows(weight, bias)


def spread_directions(features: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Return directions along which samples spread by a standard deviation of 1, without correlation.

    Args:
        features: The features of samples that the server has.
        count: The number of directions.
        draw: The generator of the directions.
    """
    centred = features - features.mean(0)
    kept = max(count, min(COMPONENTS, len(features) // 8))
    sizes, components = _components(centred, kept, draw)
    kept = max(1, min(kept, int((sizes > 1e-6 * sizes[0]).sum())))
    spread = sizes[:kept] / max(1, len(features) - 1) ** 0.5
    mixing = torch.randn(kept, max(count, 1), generator=draw, dtype=torch.double).to(features)
    mixing, _ = torch.linalg.qr(mixing)
    if mixing.shape[1] < count:  # fewer components than directions, as for rows of few columns
        mixing = torch.randn(kept, count, generator=draw, dtype=torch.double).to(features)
        mixing = mixing / mixing.norm(dim=0)
    looks: Tensor = (mixing / spread[:, None]).T @ components[:kept]
    return looks


def _components(centred: Tensor, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the largest singular values and the principal directions of samples without their mean.

    Of many large samples, only those that are needed are computed, by a randomised method (Halko et al. 2011).
    """
    if centred.numel() <= LARGE:
        _, sizes, components = torch.linalg.svd(centred, full_matrices=False)
        return sizes, components
    width = min(len(centred), count + SPARE)
    start = torch.randn(centred.shape[1], width, generator=draw, dtype=torch.double).to(centred)
    basis, _ = torch.linalg.qr(centred @ start)
    for _ in range(PASSES):
        basis, _ = torch.linalg.qr(centred @ (centred.T @ basis))
    _, sizes, components = torch.linalg.svd(basis.T @ centred, full_matrices=False)
    return sizes[:count], components[:count]


def half_negative_rows(features: Tensor, rows: int, samples: int, draw: torch.Generator) -> Rows:
    """Return rows with weights of their own, half of which are negative, that few samples activate.

    Args:
        features: The features of samples that the server has.
        rows: The number of rows.
        samples: The number of samples of a client. Each row is to be active for about one of them.
        draw: The generator of the weights.
    """
    size = features.shape[1]
    drawn = torch.randn(rows, size, generator=draw, dtype=torch.double).to(features).abs()
    places = torch.rand(rows, size, generator=draw, dtype=torch.double).to(features).argsort(1) < size // 2
    positive, negative = torch.where(places, 0.0, drawn), torch.where(places, drawn, 0.0)
    share = 1 - 1 / max(2, samples + 1)
    up, down = features @ positive.T, (features @ negative.T).clamp_min(1e-12)
    # A row is active where positive / negative is above a factor, which is a quantile of the server's samples.
    factor = torch.quantile(up / down, share, dim=0)
    weight = positive - factor[:, None] * negative
    spread = (features @ weight.T).std(0).clamp_min(1e-12)
    return Rows(weight / spread[:, None], features.new_zeros(rows))
