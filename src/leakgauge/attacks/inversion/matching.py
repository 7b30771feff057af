"""Matching of reconstructions from different epochs that show the same sample."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput


def match_epochs(copies: Tensor, labels: Tensor | None = None) -> Tensor:
    """Reorder the samples of every epoch to match the samples of the first epoch (DLF, appendix C).

    The samples of each later epoch are assigned one-to-one to the samples of the first epoch. The assignment has the
    largest sum of PSNRs.

    Args:
        copies: The reconstructions of all epochs in their original units, (epochs, samples, ...).
        labels: The labels of every epoch, (epochs, samples), if they are known. Then only samples with the same label
            are assigned to each other.
    """
    if copies.dim() < 3:
        raise InvalidInput(f"expected (epochs, samples, ...), not a tensor of shape {tuple(copies.shape)}")
    if labels is None:
        labels = torch.zeros(copies.shape[:2], dtype=torch.long, device=copies.device)
    elif labels.shape != copies.shape[:2] or bool((labels.sort(1).values != labels[0].sort().values).any()):
        raise InvalidInput("labels must be (epochs, samples), one for each of the copies, the same in every epoch")
    first = copies[0]
    rest = zip(copies[1:], labels[1:], strict=True)
    return torch.stack([first, *(epoch[_assign(first, epoch, labels[0, :, None] != row)] for epoch, row in rest)])


def average_epochs(copies: Tensor, labels: Tensor | None = None) -> Tensor:
    """Average the reconstructions of each sample over all epochs, after the epochs are matched (DLF's MatchEpoch).

    Args:
        copies: The reconstructions of all epochs, as in :func:`match_epochs`.
        labels: The labels of every epoch, as in :func:`match_epochs`.
    """
    return match_epochs(copies, labels).mean(0)


def match_greedily(
    first: Tensor, second: Tensor, *, pool: int = 2, allowed: Tensor | None = None
) -> list[tuple[int, int]]:
    """Pair the samples of two epochs one-to-one, starting with the most similar pair (AGIC, section IV-B).

    Similar samples have a small mean squared difference. If the epochs have different sizes, some samples of the larger
    epoch have no partner.

    Args:
        first: The samples of the first epoch.
        second: The samples of the second epoch.
        pool: The side length, in pixels, of the squares over which images are averaged before they are compared.
        allowed: A mask of the pairs that labels allow, (samples of the first epoch, samples of the second epoch).
            Samples for which no allowed partner is left are paired without this mask.
    """
    whole_number("pool", pool)
    if first.shape[1:] != second.shape[1:]:
        raise InvalidInput(f"samples of shape {tuple(first.shape[1:])} and {tuple(second.shape[1:])} cannot be paired")
    if pool > 1 and first.dim() == 4 and min(first.shape[2:]) >= pool:
        first, second = (F.avg_pool2d(samples, pool) for samples in (first, second))
    distance = torch.cdist(first.flatten(1).double(), second.flatten(1).double()).nan_to_num(math.inf).cpu()
    if allowed is None:
        allowed = torch.ones_like(distance, dtype=torch.bool)
    order = [divmod(place, len(second)) for place in distance.flatten().argsort(stable=True).tolist()]
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for filtered in (True, False):
        for row, partner in order:
            if row not in pairs and partner not in taken and (not filtered or allowed[row, partner]):
                pairs[row] = partner
                taken.add(partner)
    return sorted(pairs.items())


def _assign(reference: Tensor, others: Tensor, forbidden: Tensor) -> Tensor:
    """Return, for each sample in ``reference``, the index of its partner in ``others``, without forbidden pairs."""
    from scipy.optimize import linear_sum_assignment

    squared = torch.cdist(reference.flatten(1).double(), others.flatten(1).double()).square()
    # The logarithm of the error is the PSNR up to sign, factor and constant. The floor keeps equal rows finite.
    cost = (squared / reference[0].numel()).clamp_min(1e-10).log().masked_fill(forbidden, math.inf)
    _, partners = linear_sum_assignment(cost.cpu().numpy())
    return torch.as_tensor(partners, device=others.device)
