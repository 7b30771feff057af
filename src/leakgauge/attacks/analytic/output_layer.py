r"""The equations of an output layer, which determine the inputs of this layer for every sample of a batch.

The gradient of an output layer with cross-entropy is

.. math:: G = \frac1N \sum_{i=1}^{N} \delta_i\, [f_i, 1]^T, \qquad \delta_i = \mathrm{softmax}(W f_i + b) - y_i .

If its rank is the number of samples :math:`N`, every :math:`[f_i, 1]` lies in its row space, and has :math:`N - 1`
unknown coordinates there. The labels :math:`y_i` are known. With :math:`K` classes, the matrix in these coordinates has
:math:`(K - 1) N` independent entries for :math:`N (N - 1)` unknowns. So all samples are solved for together by the
Levenberg-Marquardt method. As there are more equations than unknowns, a residual of zero proves the solution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.levenberg import EASE, SOLVED, TIGHTEN, onto_plane, plane_directions

#: The damping of the first iteration.
DAMPING = 1e-2
#: The spreads of the random starts around the middle of all samples.
SPREADS = (0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class OutputEquations:
    """The equations for the inputs of all samples at an output layer.

    A point is a matrix with the coordinates of one sample in each row.

    Args:
        core: The layer's gradient, with the inputs as coordinates, (classes, samples).
        weight: The matrix that maps coordinates to the outputs of the layer, (classes, samples).
        last: The coefficients that compute the last entry of an augmented input, which is 1, from its coordinates.
        targets: The target probabilities of each sample, (samples, classes).
    """

    core: Tensor
    weight: Tensor
    last: Tensor
    targets: Tensor

    def solve(self, starts: int, iterations: int, random: torch.Generator) -> tuple[Tensor, float]:
        """Return the best point, and the norm of its residual divided by the norm of the gradient.

        Args:
            starts: The number of starting points.
            iterations: The largest number of iterations from each starting point.
            random: The generator of the starting points.
        """
        samples = len(self.targets)
        spread = torch.tensor(SPREADS).repeat(starts)[:starts, None, None].to(self.core) / self.last.norm()
        drawn = torch.randn(starts, samples, samples, dtype=self.core.dtype, generator=random).to(self.core.device)
        points = onto_plane((spread * drawn).flatten(0, 1), self.last).unflatten(0, (starts, samples))
        directions = plane_directions(self.last)
        if not directions.shape[1]:
            return points[0], float(self.residuals(points[:1]).norm())
        damping = torch.full((starts, 1, 1), DAMPING, dtype=self.core.dtype, device=self.core.device)
        left = self.residuals(points)
        errors = left.square().sum(1)
        for _ in range(iterations):
            if float(errors.min()) < SOLVED:
                break
            slopes = self._slopes(points, directions)
            square = slopes.mT @ slopes
            scale = damping * torch.diagonal(square, dim1=1, dim2=2).mean(1)[:, None, None]
            eye = torch.eye(square.shape[1], dtype=square.dtype, device=square.device)
            step = torch.linalg.solve(square + scale * eye, slopes.mT @ left[..., None])[..., 0]
            tried = points - step.unflatten(1, (samples, -1)) @ directions.T
            there = self.residuals(tried)
            better = there.square().sum(1) < errors
            points, left = torch.where(better[:, None, None], tried, points), torch.where(better[:, None], there, left)
            errors = left.square().sum(1)
            damping = (damping * torch.where(better, EASE, TIGHTEN)[:, None, None]).clamp(1e-15, 1e8)
        best = int(errors.argmin())
        return points[best], float(errors[best].sqrt())

    def residuals(self, points: Tensor) -> Tensor:
        """Return the difference between the predicted and the observed gradient, divided by the norm of the latter.

        Args:
            points: The points, (starts, samples, samples).
        """
        errors = (points @ self.weight.T).softmax(-1) - self.targets
        left: Tensor = (errors.mT @ points / len(self.targets) - self.core) / self.core.norm()
        return left.flatten(1)

    def _slopes(self, points: Tensor, directions: Tensor) -> Tensor:
        """Return the derivatives of the residuals with respect to the moves of each sample along each direction."""
        chances = (points @ self.weight.T).softmax(-1)
        moves = self.weight @ directions
        inner = chances @ moves
        changes = chances[..., None] * (moves - inner[:, :, None, :])
        of_inputs = torch.einsum("sikm,sij->skjim", changes, points)
        of_errors = torch.einsum("sik,jm->skjim", chances - self.targets, directions)
        slopes: Tensor = (of_inputs + of_errors) / (len(self.targets) * self.core.norm())
        return slopes.flatten(3, 4).flatten(1, 2)
