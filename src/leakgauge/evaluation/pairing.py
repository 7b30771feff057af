"""Which reconstruction belongs to which original.

An update does not say in which order a client's samples were used, so reconstructions come in any order. They
are assigned one-to-one to the originals such that the sum of their PSNRs is largest, as Dimitrov et al. (DLF)
do. Since PSNR is ``-10 log10`` of the squared error, this is the same as the smallest *product* of squared
errors, not the smallest sum: one very good match outweighs several mediocre ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation.metrics.pixels import check_data_range, decibels


@dataclass(frozen=True, eq=False)
class Pairing:
    """``rows[i]`` is the reconstruction that belongs to original ``i``, or -1 if none does."""

    rows: Tensor

    @property
    def matched(self) -> Tensor:
        """Which originals have a reconstruction."""
        return self.rows >= 0

    def apply(self, values: Tensor, missing: float = 0.0) -> Tensor:
        """One value (or sample) for each original, taken from those of the reconstructions.

        >>> Pairing(torch.tensor([1, -1, 0])).apply(torch.tensor([5.0, 6.0]))
        tensor([6., 0., 5.])
        """
        paired = values.new_full((len(self.rows), *values.shape[1:]), missing)
        paired[self.matched] = values[self.rows[self.matched]]
        return paired


def usable(samples: Tensor) -> Tensor:
    """Which samples hold only numbers that can be compared: no NaN, no infinity, no overflow when squared.

    >>> usable(torch.tensor([[1.0, 2.0], [float("nan"), 0.0]]))
    tensor([ True, False])
    """
    return samples.flatten(1).double().square().sum(1).isfinite()


def psnr_matrix(reconstructed: Tensor, original: Tensor, *, data_range: float = 1.0) -> Tensor:
    """The PSNR of every original (row) with every reconstruction (column).

    >>> psnr_matrix(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]])).abs()
    tensor([[  0., 100.]], dtype=torch.float64)
    """
    check_data_range(data_range)
    if reconstructed.shape[1:] != original.shape[1:]:
        raise InvalidInput(
            f"reconstructions have shape {tuple(reconstructed.shape[1:])}, "
            f"but the originals {tuple(original.shape[1:])}"
        )
    candidates = reconstructed.detach().double().flatten(1)
    rows = [(candidates - one).square().mean(1) for one in original.detach().double().flatten(1)]
    errors = torch.stack(rows) if rows else candidates.new_zeros(0, len(candidates))
    return decibels(errors, data_range)


def pair(reconstructed: Tensor, original: Tensor, *, data_range: float = 1.0) -> Pairing:
    """Assign reconstructions to originals one-to-one, maximising the total PSNR.

    There may be fewer or more reconstructions than originals. A reconstruction that holds NaN or infinity
    belongs to no original: whoever it was meant for counts as not recovered.

    >>> pair(torch.tensor([[0.9], [0.1]]), torch.tensor([[0.0], [1.0]])).rows
    tensor([1, 0])
    """
    from scipy.optimize import linear_sum_assignment

    if not bool(usable(original).all()):
        raise InvalidInput("the originals hold NaN or infinite values, so nothing can be compared with them")
    candidates = torch.nonzero(usable(reconstructed)).flatten()
    gains = psnr_matrix(reconstructed[candidates], original, data_range=data_range)
    originals, columns = linear_sum_assignment(gains.cpu().numpy(), maximize=True)
    rows = torch.full((len(original),), -1)
    rows[torch.as_tensor(originals)] = candidates.cpu()[torch.as_tensor(columns)]
    return Pairing(rows)
