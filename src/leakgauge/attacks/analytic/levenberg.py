r"""Levenberg-Marquardt search for the points of a first span whose activations lie in a second span.

A point is :math:`c = c_0 + T p`, in coordinates of the first span. :math:`c_0` and the directions :math:`T` keep the
last entry of the augmented input at 1. The residual of a point is the relative distance of its augmented activation
:math:`u = [\phi(M c), 1]` from the second span with orthonormal basis :math:`Q`:

.. math:: r(p) = (I - Q Q^T)\, u / \lVert u \rVert .

With :math:`A = \mathrm{d}u / \lVert u \rVert`, :math:`a = A^T r` and :math:`b = A^T u / \lVert u \rVert`, the
gradient and the Gauss-Newton matrix of :math:`\lVert r \rVert^2 / 2` are

.. math::
    g = a - \lVert r \rVert^2 b, \qquad
    H = A^T A - (Q^T A)^T Q^T A - a b^T - b a^T + \lVert r \rVert^2 b b^T .
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Problem:
    """The quantities that define a search for points of the first span.

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
        gap = 1 - points @ self.last
        return points + gap[:, None] * self.last / self.last.square().sum()

    def directions(self) -> Tensor:
        """Return an orthonormal basis of the directions that do not change the last entry of the augmented input."""
        complete: Tensor = torch.linalg.qr(self.last[:, None], mode="complete")[0]
        return complete[:, 1:]

    def residuals(self, points: Tensor) -> Tensor:
        """Return the squared relative distance of each point's activation from the second span."""
        return _evaluate(self, points).residual


@dataclass(eq=False)
class _State:
    slope: Tensor
    unit: Tensor
    miss: Tensor
    residual: Tensor


def _evaluate(problem: Problem, points: Tensor) -> _State:
    values, slope = problem.activation(points @ problem.layer.T)
    augmented = torch.cat([values, torch.ones_like(values[:, :1])], 1)
    norm = augmented.norm(dim=1, keepdim=True)
    unit = augmented / norm
    miss = unit - (unit @ problem.span) @ problem.span.T
    return _State(slope / norm, unit, miss, miss.square().sum(1))


def _normal_equations(problem: Problem, directions: Tensor, state: _State) -> tuple[Tensor, Tensor]:
    """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point."""
    moves = problem.layer @ directions  # (width, unknowns)
    width, unknowns = moves.shape
    count = len(state.slope)
    weighted = (state.slope.square()[:, None, :] * moves.T).reshape(count * unknowns, width)
    square = (weighted @ moves).reshape(count, unknowns, unknowns)
    inside = (state.slope[:, None, :] * problem.span[:-1].T).reshape(-1, width) @ moves
    inside = inside.reshape(count, -1, unknowns)
    a = (state.slope * state.miss[:, :-1]) @ moves
    b = (state.slope * state.unit[:, :-1]) @ moves
    cross = a[:, :, None] * b[:, None, :]
    squared = state.residual[:, None]
    matrix = square - inside.mT @ inside - cross - cross.mT + squared[:, :, None] * b[:, :, None] * b[:, None, :]
    return a - squared * b, matrix


def search(problem: Problem, starts: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Search from each starting point, and return the final points and their squared residuals.

    Args:
        problem: The search problem.
        starts: The starting points, in coordinates of the first span.
        iterations: The largest number of iterations from each starting point.
    """
    ends = problem.onto_plane(starts)
    directions = problem.directions()
    residuals = problem.residuals(ends)
    running = torch.arange(len(ends), device=ends.device)
    points, state = ends.clone(), _evaluate(problem, ends)
    damping = torch.full((len(ends),), 1e-2, dtype=ends.dtype, device=ends.device)
    if not directions.shape[1]:
        return ends, residuals
    for _ in range(iterations):
        gradient, matrix = _normal_equations(problem, directions, state)
        step = _damped_step(gradient, matrix, damping)
        tried = points - step @ directions.T
        after = _evaluate(problem, tried)
        better = after.residual < state.residual
        stalled = better & (after.residual > (1 - STALLED) * state.residual)
        damping = torch.where(better, damping * EASE, damping * TIGHTEN)
        points = torch.where(better[:, None], tried, points)
        state = _State(
            torch.where(better[:, None], after.slope, state.slope),
            torch.where(better[:, None], after.unit, state.unit),
            torch.where(better[:, None], after.miss, state.miss),
            torch.where(better, after.residual, state.residual),
        )
        ends[running], residuals[running] = points, state.residual
        going = ~(stalled | (state.residual < SOLVED) | (damping > STUCK))
        if not bool(going.any()):
            break
        points, damping, running = points[going], damping[going], running[going]
        state = _State(state.slope[going], state.unit[going], state.miss[going], state.residual[going])
    return ends, residuals


def _damped_step(gradient: Tensor, matrix: Tensor, damping: Tensor) -> Tensor:
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    floor = diagonal.abs().amax(1, keepdim=True).clamp_min(1e-300) * 1e-9
    damped = matrix + torch.diag_embed(damping[:, None] * diagonal.clamp_min(0) + floor)
    factor, _ = torch.linalg.cholesky_ex(damped)
    return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0].nan_to_num(0.0, 0.0, 0.0)
