"""Which reconstruction is which: pairing several reconstructions of the same samples with each other."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput


def match_epochs(copies: Tensor, labels: Tensor | None = None) -> Tensor:
    """Order every epoch's samples like those of the first (DLF, appendix C).

    ``copies`` is (epochs, samples, ...), as a person sees them. Each later epoch is assigned one-to-one to the
    first so that the sum of the PSNRs is largest. Where the ``labels`` of every epoch are known, (epochs, samples),
    only samples of the same label are assigned to each other.
    """
    if copies.dim() < 3:
        raise InvalidInput(f"expected (epochs, samples, ...), not a tensor of shape {tuple(copies.shape)}")
    if labels is None:
        labels = torch.zeros(copies.shape[:2], dtype=torch.long, device=copies.device)
    elif labels.shape != copies.shape[:2] or bool((labels.sort(1).values != labels[0].sort().values).any()):
        raise InvalidInput("labels must be (epochs, samples), one for each of the copies, the same in every epoch")
    first = copies[0]
    rest = zip(copies[1:], labels[1:], strict=True)
    return torch.stack([first, *(epoch[_assign(first, epoch, labels[0, :, None] != own)] for epoch, own in rest)])


def average_epochs(copies: Tensor, labels: Tensor | None = None) -> Tensor:
    """One sample from the several reconstructions of each: match the epochs, then average (DLF's MatchEpoch)."""
    return match_epochs(copies, labels).mean(0)


def match_greedily(
    first: Tensor, second: Tensor, *, pool: int = 2, allowed: Tensor | None = None
) -> list[tuple[int, int]]:
    """Pair the samples of two epochs one-to-one, the most similar first (AGIC, section IV-B).

    Similar is what has a small mean squared difference after images were averaged over ``pool`` x ``pool`` pixels.
    ``allowed`` says which pairs may be (a label filter): (samples of the first, samples of the second). What finds no
    partner so is paired without it. Of epochs of unequal size some samples of the larger stay alone.
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
        for one, other in order:
            if one not in pairs and other not in taken and (not filtered or allowed[one, other]):
                pairs[one] = other
                taken.add(other)
    return sorted(pairs.items())


def _assign(reference: Tensor, others: Tensor, forbidden: Tensor) -> Tensor:
    """For each row of ``reference`` the row of ``others`` that is its partner, and not a forbidden one."""
    from scipy.optimize import linear_sum_assignment

    squared = torch.cdist(reference.flatten(1).double(), others.flatten(1).double()).square()
    # The logarithm of the error is the PSNR up to sign, factor and constant; the floor keeps equal rows finite.
    cost = (squared / reference[0].numel()).clamp_min(1e-10).log().masked_fill(forbidden, math.inf)
    _, partners = linear_sum_assignment(cost.cpu().numpy())
    return torch.as_tensor(partners, device=others.device)
