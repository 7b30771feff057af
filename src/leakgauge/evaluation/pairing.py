"""The pairing of reconstructions with originals.

An update does not show the order of a client's samples, so reconstructions come in any order. They are assigned
one-to-one to the originals such that the sum of the PSNRs is largest, as in DLF (Dimitrov et al.). PSNR is ``-10
log10`` of the squared error. The largest sum of PSNRs is therefore the smallest *product* of squared errors, and not
the smallest sum of squared errors. One very good pair outweighs several mediocre pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation.metrics.pixels import check_data_range, decibels


@dataclass(frozen=True, eq=False)
class Pairing:
    """The assignment of one reconstruction to each original.

    Args:
        rows: The index of the reconstruction of each original. It is -1 for an original without a reconstruction.
    """

    rows: Tensor

    @property
    def matched(self) -> Tensor:
        """A tensor that is true for each original with a reconstruction."""
        return self.rows >= 0

    def apply(self, values: Tensor, missing: float = 0.0) -> Tensor:
        """Reorder the values of the reconstructions, so that there is one value for each original.

        Args:
            values: One value or one sample for each reconstruction.
            missing: The value of an original without a reconstruction.

        >>> Pairing(torch.tensor([1, -1, 0])).apply(torch.tensor([5.0, 6.0]))
        tensor([6., 0., 5.])
        """
        paired = values.new_full((len(self.rows), *values.shape[1:]), missing)
        paired[self.matched] = values[self.rows[self.matched]]
        return paired


def usable(samples: Tensor) -> Tensor:
    """Return whether each sample can be compared.

    A sample can be compared if it holds no NaN and no infinity, and if the squares of its values do not overflow.

    >>> usable(torch.tensor([[1.0, 2.0], [float("nan"), 0.0]]))
    tensor([ True, False])
    """
    return samples.flatten(1).double().square().sum(1).isfinite()


def psnr_matrix(reconstructed: Tensor, original: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Return the PSNR of every pair as a matrix, with one row for each original and one column for each reconstruction.

    Args:
        reconstructed: The reconstructions, (M, *shape).
        original: The originals, (N, *shape).
        data_range: The highest possible value of a pixel minus the lowest possible value.

    >>> psnr_matrix(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]])).abs()
    tensor([[  0., 100.]], dtype=torch.float64)
    """
    check_data_range(data_range)
    if reconstructed.shape[1:] != original.shape[1:]:
        raise InvalidInput(
            f"reconstructions have shape {tuple(reconstructed.shape[1:])}, "
            f"but the originals have shape {tuple(original.shape[1:])}"
        )
    candidates = reconstructed.detach().double().flatten(1)
    rows = [(candidates - sample).square().mean(1) for sample in original.detach().double().flatten(1)]
    errors = torch.stack(rows) if rows else candidates.new_zeros(0, len(candidates))
    return decibels(errors, data_range)


def pair(reconstructed: Tensor, original: Tensor, *, data_range: float = 1.0) -> Pairing:
    """Assign reconstructions to originals one-to-one, such that the sum of the PSNRs is largest.

    A reconstruction that holds NaN or infinity is assigned to no original.

    Args:
        reconstructed: The reconstructions, (M, *shape). There may be fewer or more reconstructions than originals.
        original: The originals, (N, *shape).
        data_range: The highest possible value of a pixel minus the lowest possible value.

    >>> pair(torch.tensor([[0.9], [0.1]]), torch.tensor([[0.0], [1.0]])).rows
    tensor([1, 0])
    """
    if not bool(usable(original).all()):
        raise InvalidInput(
            "the originals hold NaN or infinite values, so nothing can be compared with them. Clean or impute them"
        )
    gains = psnr_matrix(reconstructed[usable(reconstructed)], original, data_range=data_range)
    return assigned(reconstructed, gains, len(original))


def assigned(reconstructed: Tensor, gains: Tensor, originals: int) -> Pairing:
    """Assign reconstructions to originals one-to-one, such that the sum of the gains is largest.

    A reconstruction that holds NaN or infinity is assigned to no original.

    Args:
        reconstructed: The reconstructions.
        gains: The gain of each pair, (originals, reconstructions). Reconstructions that cannot be compared may be left
            out.
        originals: The number of originals.
    """
    from scipy.optimize import linear_sum_assignment

    candidates = torch.nonzero(usable(reconstructed)).flatten()
    if gains.shape[1] == len(reconstructed):
        gains = gains[:, candidates.to(gains.device)]
    rows_of_originals, columns = linear_sum_assignment(gains.cpu().numpy(), maximize=True)
    rows = torch.full((originals,), -1)
    rows[torch.as_tensor(rows_of_originals)] = candidates.cpu()[torch.as_tensor(columns)]
    return Pairing(rows)
