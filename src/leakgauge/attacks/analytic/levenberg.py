r"""The Levenberg-Marquardt method from many starting points at once, and the problem of two spans.

A point of the first span is :math:`c = c_0 + T p`, in coordinates of this span. :math:`c_0` and the directions
:math:`T` keep the last entry of the augmented input at 1. The residual of a point is the relative distance of a vector
:math:`u` from a span with orthonormal basis :math:`Q`:

.. math:: r(p) = (I - Q Q^T)\, u / \lVert u \rVert .

In the problem of two spans, :math:`u = [\phi(M c), 1]` is the augmented activation. With
:math:`A = \mathrm{d}u / \lVert u \rVert`, :math:`a = A^T r` and :math:`b = A^T u / \lVert u \rVert`, the
gradient and the Gauss-Newton matrix of :math:`\lVert r \rVert^2 / 2` are

.. math::
    g = a - \lVert r \rVert^2 b, \qquad
    H = A^T A - (Q^T A)^T Q^T A - a b^T - b a^T + \lVert r \rVert^2 b b^T .
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

#: The factors of the damping after a step that lowers the residual, and after a step that does not.
EASE, TIGHTEN = 0.3, 4.0
#: A start is finished when its squared residual falls by less than this share in a step.
STALLED = 1e-3
#: A start is finished below this squared residual, which is that of rounding errors in double precision.
SOLVED = 1e-20
#: A start is abandoned when its damping rises above this.
STUCK = 1e8

#: A function that returns activations and their slopes for outputs of the first layer.
Activation = Callable[[Tensor], tuple[Tensor, Tensor]]
#: The values of a problem at each point. The last one is the squared residual.
State = tuple[Tensor, ...]


class LeastSquares(Protocol):
    """A problem with one squared residual for each point."""

    def onto_plane(self, points: Tensor) -> Tensor:
        """Return, for each point, the nearest point that is allowed."""

    def directions(self) -> Tensor:
        """Return a basis of the directions in which points may move, one in each column."""

    def evaluate(self, points: Tensor) -> State:
        """Return the values at each point. The last one is the squared residual."""

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The search for points of a first span whose activations lie in a second span.

    Args:
        layer: The matrix from coordinates in the first span to outputs of the first layer, (width, rank).
        last: The coefficients of the coordinates in the sum that gives the last entry of the augmented input, (rank,).
        span: The orthonormal basis of the second span, (width + 1, rank of the second span).
        activation: The activation between the layers.
    """

    layer: Tensor
    last: Tensor
    span: Tensor
    activation: Activation

    def onto_plane(self, points: Tensor) -> Tensor:
        """Return, for each point, the nearest point whose augmented input has the last entry 1."""
        return onto_plane(points, self.last)

    def directions(self) -> Tensor:
        """Return an orthonormal basis of the directions that do not change the last entry of the augmented input."""
        return plane_directions(self.last)

    def residuals(self, points: Tensor) -> Tensor:
        """Return the squared relative distance of each point's activation from the second span."""
        return self.evaluate(points)[-1]

    def evaluate(self, points: Tensor) -> State:
        """Return the slopes, the activations, their parts outside the second span, and the squared residuals."""
        values, slope = self.activation(points @ self.layer.T)
        augmented = torch.cat([values, torch.ones_like(values[:, :1])], 1)
        norm = augmented.norm(dim=1, keepdim=True)
        unit = augmented / norm
        miss = unit - (unit @ self.span) @ self.span.T
        return slope / norm, unit, miss, miss.square().sum(1)

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point.

        Args:
            directions: The directions in which points may move, one in each column.
            state: The values at each point.
        """
        slope, unit, miss, residual = state
        moves = self.layer @ directions  # (width, unknowns)
        width, unknowns = moves.shape
        count = len(slope)
        weighted = (slope.square()[:, None, :] * moves.T).reshape(count * unknowns, width)
        square = (weighted @ moves).reshape(count, unknowns, unknowns)
        inside = (slope[:, None, :] * self.span[:-1].T).reshape(-1, width) @ moves
        inside = inside.reshape(count, -1, unknowns)
        a = (slope * miss[:, :-1]) @ moves
        b = (slope * unit[:, :-1]) @ moves
        return a - residual[:, None] * b, square - inside.mT @ inside + corrections(a, b, residual)


def onto_plane(points: Tensor, last: Tensor) -> Tensor:
    """Return, for each point, the nearest point whose augmented input has the last entry 1.

    Args:
        points: Points in coordinates of the first span.
        last: The coefficients of the coordinates in the sum that gives the last entry.
    """
    gap = 1 - points @ last
    return points + gap[:, None] * last / last.square().sum()


def plane_directions(last: Tensor) -> Tensor:
    """Return an orthonormal basis of the directions that do not change the last entry of the augmented input.

    Args:
        last: The coefficients of the coordinates in the sum that gives the last entry.
    """
    complete: Tensor = torch.linalg.qr(last[:, None], mode="complete")[0]
    return complete[:, 1:]


def corrections(a: Tensor, b: Tensor, residual: Tensor) -> Tensor:
    """Return the terms of the Gauss-Newton matrix that contain the vectors :math:`a` and :math:`b` of this module.

    Args:
        a: The vector :math:`a` of each point.
        b: The vector :math:`b` of each point.
        residual: The squared residual of each point.
    """
    cross = a[:, :, None] * b[:, None, :]
    return residual[:, None, None] * b[:, :, None] * b[:, None, :] - cross - cross.mT


def search(problem: LeastSquares, starts: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Search from each starting point, and return the final points and their squared residuals.

    Args:
        problem: The search problem.
        starts: The starting points.
        iterations: The largest number of iterations from each starting point.
    """
    ends = problem.onto_plane(starts)
    directions = problem.directions()
    points, state = ends.clone(), problem.evaluate(ends)
    residuals = state[-1].clone()
    running = torch.arange(len(ends), device=ends.device)
    damping = torch.full((len(ends),), 1e-2, dtype=ends.dtype, device=ends.device)
    if not directions.shape[1]:
        return ends, residuals
    for _ in range(iterations):
        gradient, matrix = problem.normal_equations(directions, state)
        step = _damped_step(gradient, matrix, damping)
        tried = points - step @ directions.T
        after = problem.evaluate(tried)
        better = after[-1] < state[-1]
        stalled = better & (after[-1] > (1 - STALLED) * state[-1])
        damping = torch.where(better, damping * EASE, damping * TIGHTEN)
        points = torch.where(better[:, None], tried, points)
        state = tuple(_choose(better, new, old) for new, old in zip(after, state, strict=True))
        ends[running], residuals[running] = points, state[-1]
        going = ~(stalled | (state[-1] < SOLVED) | (damping > STUCK))
        if not bool(going.any()):
            break
        points, damping, running = points[going], damping[going], running[going]
        state = tuple(value[going] for value in state)
    return ends, residuals


def _choose(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _damped_step(gradient: Tensor, matrix: Tensor, damping: Tensor) -> Tensor:
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    floor = diagonal.abs().amax(1, keepdim=True).clamp_min(1e-300) * 1e-9
    damped = matrix + torch.diag_embed(damping[:, None] * diagonal.clamp_min(0) + floor)
    factor, _ = torch.linalg.cholesky_ex(damped)
    return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0].nan_to_num(0.0, 0.0, 0.0)
