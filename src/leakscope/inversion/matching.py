"""Which reconstruction is which: pairing several reconstructions of the same samples with each other."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.errors import InvalidInput


def match_epochs(copies: Tensor) -> Tensor:
    """Order every epoch's samples like those of the first (DLF, appendix C).

    ``copies`` is (epochs, samples, ...), as a person sees them. Each later epoch is assigned one-to-one to the
    first so that the sum of the PSNRs is largest.
    """
    if copies.dim() < 3:
        raise InvalidInput(f"expected (epochs, samples, ...), not a tensor of shape {tuple(copies.shape)}")
    first = copies[0]
    return torch.stack([first, *(epoch[_assign(first, epoch)] for epoch in copies[1:])])


def average_epochs(copies: Tensor) -> Tensor:
    """One sample from the several reconstructions of each: match the epochs, then average (DLF's MatchEpoch)."""
    return match_epochs(copies).mean(0)


def _assign(reference: Tensor, others: Tensor) -> Tensor:
    """For each row of ``reference`` the row of ``others`` that is its partner."""
    from scipy.optimize import linear_sum_assignment

    squared = torch.cdist(reference.flatten(1).double(), others.flatten(1).double()).square()
    # The logarithm of the error is the PSNR up to sign, factor and constant; the floor keeps equal rows finite.
    _, partners = linear_sum_assignment((squared / reference[0].numel()).clamp_min(1e-10).log().cpu().numpy())
    return torch.as_tensor(partners, device=others.device)
