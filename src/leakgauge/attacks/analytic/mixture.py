r"""The search for gradients at the first dense layer, if its activation has only two slopes, such as ReLU.

The gradient of one sample's loss with respect to the outputs of the first dense layer is

.. math:: \delta_k = \phi'(z_k)\, (W_2^T \delta^{(2)})_k ,

where :math:`\delta^{(2)}` is the gradient at the outputs of the next dense layer. Both gradients lie in known spaces,
which are the column spaces of the layers' gradients. With bases of these spaces, :math:`\delta = L a` and :math:`W_2^T
\delta^{(2)} = K b` for unknown coordinates :math:`a` and :math:`b`. The slope :math:`\phi'(z_k)` is one of two known
numbers, 0 and 1 for ReLU. So every neuron fulfils one of two linear equations,

.. math:: (L a)_k = \phi'_{\mathrm{low}} (K b)_k \quad \text{or} \quad (L a)_k = \phi'_{\mathrm{high}} (K b)_k ,

and there are far fewer unknowns than neurons. This is a mixture of two linear regressions with shared unknowns.
Expectation-maximisation (Dempster et al. 1977) solves it from many starting points. Each step weights both equations of
a neuron with the probability that they hold, and solves the weighted equations. In trained networks most neurons may be
active, so that :math:`\delta` has few zeros. The second equation then determines the unknowns. SPEAR (Dimitrov et al.
2024) uses the zeros only.

The equations have no right-hand side. Each step therefore solves :math:`M [a, b] = [t, w]` with the matrix :math:`M` of
the normal equations, as the inverse power iteration does. Different vectors :math:`t` and :math:`w` lead to different
samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

#: The variance of the residuals in units of the squared gradient at which rounding errors of doubles begin.
SOLVED = 1e-26
#: A start is finished when its squared residual changes by less than this share in a step.
STALLED = 1e-4
#: The smallest number of steps before a start is finished.
FEWEST_STEPS = 8


@dataclass(frozen=True, eq=False)
class Branches:
    """The two slopes of an activation, for each neuron.

    Args:
        low: The smaller slope of each neuron.
        high: The larger slope of each neuron.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, slopes: Tensor) -> Branches | None:
        """Return the two slopes of each neuron, or ``None`` if a neuron has more slopes or only one.

        Args:
            slopes: The slopes at many points, (points, neurons).
        """
        low, high = slopes.amin(0), slopes.amax(0)
        gap = high - low
        share = (slopes - low) / gap
        two = torch.minimum(share.abs(), (share - 1).abs()) < 1e-9
        return cls(low, high) if bool((gap > 0).all()) and bool(two.all()) else None

    def share(self, slopes: Tensor) -> Tensor:
        """Return, for each given slope, 0 if it is the smaller slope of its neuron, and 1 if it is the larger slope.

        Args:
            slopes: The slopes at some points, (points, neurons).
        """
        return (slopes - self.low) / (self.high - self.low)


class Fitted(NamedTuple):
    """The solutions of the search, one for each starting point.

    Args:
        gradients: The gradient at the first layer's outputs, as coordinates in the column space of this layer's
            gradient. Each row is scaled to length 1.
        downstream: The gradient at the next layer's outputs, as coordinates in the column space of that layer's
            gradient. Each row has the same scale as the row of ``gradients``.
        shares: The probability that each neuron has the larger slope.
        residuals: The squared relative residual of the equations.
    """

    gradients: Tensor
    downstream: Tensor
    shares: Tensor
    residuals: Tensor


@dataclass(frozen=True, eq=False)
class Mixture:
    """Two linear equations for each neuron of the first layer, one for each slope of its activation.

    For each sample, one of the two equations holds. The unknowns are the gradients at the outputs of two layers.

    Args:
        left: The orthonormal basis of the column space of the first layer's gradient, (width, rank).
        downstream: The matrix that maps coordinates in the column space of the next layer's gradient to gradients at
            the first layer's activations, (width, rank of the next layer's gradient).
        branches: The two slopes of each neuron.
    """

    left: Tensor
    downstream: Tensor
    branches: Branches

    def fit(self, shares: Tensor, pulls: tuple[Tensor, Tensor], iterations: int) -> Fitted:
        """Solve the equations from starting points by expectation-maximisation.

        Args:
            shares: The initial probability that each neuron has the larger slope, (starts, width).
            pulls: The two right-hand sides of the normal equations for each start. They decide which sample is found.
            iterations: The largest number of steps.
        """
        ends = self._maximise(shares, pulls)
        running = torch.arange(len(shares), device=shares.device)
        current = ends
        for step in range(1, iterations):
            here = (pulls[0][running], pulls[1][running])
            after = self._maximise(self._expect(current), here)
            moved = (after.residuals - current.residuals).abs() > STALLED * current.residuals
            for whole, part in zip(ends, after, strict=True):
                whole[running] = part
            going = (moved & (after.residuals > SOLVED)) | (step < FEWEST_STEPS)
            if not bool(going.any()):
                break
            running, current = running[going], Fitted(*(value[going] for value in after))
        return ends

    def _maximise(self, shares: Tensor, pulls: tuple[Tensor, Tensor]) -> Fitted:
        """Solve the equations, weighted with the probabilities of the two slopes, and return one solution per start."""
        low, high = self.branches.low, self.branches.high
        pull, downstream_pull = pulls
        size = self.downstream.shape[1]
        linear = self._weighted(low + shares * (high - low), self.left)
        square = self._weighted(low.square() + shares * (high.square() - low.square()), self.downstream)
        matrix = square - linear @ linear.mT
        floor = 1e-13 * square.diagonal(dim1=1, dim2=2).amax(1)
        matrix = matrix + floor[:, None, None] * torch.eye(size, dtype=matrix.dtype, device=matrix.device)
        target = linear @ pull[:, :, None] + downstream_pull[:, :, None]
        solution = torch.linalg.solve_ex(matrix, target)[0].nan_to_num(0.0, 0.0, 0.0)
        gradients = (linear.mT @ solution)[:, :, 0] + pull
        norm = gradients.norm(dim=1, keepdim=True).clamp_min(1e-300)
        fitted = Fitted(gradients / norm, solution[:, :, 0] / norm, shares, shares[:, 0])
        of_low, of_high = self._misses(fitted)
        residuals = (of_low + shares * (of_high - of_low)).sum(1)
        # A gradient of zero solves all equations, and is no gradient of a sample.
        empty = fitted.gradients.norm(dim=1) < 0.5
        return fitted._replace(residuals=torch.where(empty, torch.ones_like(residuals), residuals))

    def _expect(self, fitted: Fitted) -> Tensor:
        """Return the probability that each neuron has the larger slope, given the current solution."""
        of_low, of_high = self._misses(fitted)
        variance = (fitted.residuals / len(self.left)).clamp_min(SOLVED / len(self.left))[:, None]
        prior = fitted.shares.mean(1, keepdim=True).clamp(0.02, 0.98)
        return torch.sigmoid((of_low - of_high) / (2 * variance) + torch.log(prior / (1 - prior)))

    def _misses(self, fitted: Fitted) -> tuple[Tensor, Tensor]:
        """Return, for each neuron, the squared residual with the smaller slope and that with the larger slope."""
        gradients, activations = fitted.gradients @ self.left.T, fitted.downstream @ self.downstream.T
        of_low = (gradients - self.branches.low * activations).square()
        return of_low, (gradients - self.branches.high * activations).square()

    def _weighted(self, weights: Tensor, other: Tensor) -> Tensor:
        """Return the product of ``downstream.T``, diagonal weights and another matrix, for each start."""
        size, width = self.downstream.shape[1], len(self.left)
        rows = (weights[:, None, :] * self.downstream.T).reshape(-1, width)
        return (rows @ other).reshape(len(weights), size, other.shape[1])  # there may be no starts
