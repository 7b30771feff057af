r"""The Levenberg-Marquardt method from many starting points at once, and a search problem for two dense layers.

The augmented input of a dense layer is its input with an appended 1, which belongs to the bias. The augmented inputs of
all samples lie in the row space of the first layer's gradient, which is called the first span. A point is a vector of
coordinates :math:`c = c_0 + T p` in a basis of this space. The start :math:`c_0` and the directions :math:`T` are
chosen such that the last entry of the augmented input stays 1. The vector :math:`u = [\phi(M c), 1]` is the augmented
input of the second layer, where :math:`M` maps coordinates to outputs of the first layer and :math:`\phi` is the
activation. For a true sample, :math:`u` lies in the row space of the second layer's gradient, which has the orthonormal
basis :math:`Q`. The residual is the part of :math:`u` outside this space:

.. math:: r(p) = (I - Q Q^T)\, u / \lVert u \rVert .

With :math:`A = (\mathrm{d}u / \mathrm{d}p) / \lVert u \rVert`, :math:`a = A^T r` and
:math:`b = A^T u / \lVert u \rVert`, the gradient and the Gauss-Newton matrix of :math:`\lVert r \rVert^2 / 2` are

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
    """A least-squares problem that :func:`search` solves from many starting points.

    The unknown is a vector, which is called a point.
    """

    def onto_plane(self, points: Tensor) -> Tensor:
        """Move each point (vector of unknowns) to the nearest point that fulfils the constraint of the problem."""

    def directions(self) -> Tensor:
        """Return the directions in which the search may move a vector of unknowns, as the columns of a matrix."""

    def evaluate(self, points: Tensor) -> State:
        """Return the values that :meth:`normal_equations` needs, for each point (vector of unknowns).

        The last value is the squared residual.
        """

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The least-squares problem for the input of one sample at the first of two dense layers.

    A point is a vector of coordinates in the row space of the first layer's gradient. It gives the augmented input of
    the first layer, which is the input with an appended 1 for the bias. The last entry must therefore be 1. The first
    layer and the activation then give the input of the second layer. The residual is the distance of this second input
    from the row space of the second layer's gradient.

    Args:
        layer: The matrix that maps points to outputs of the first layer, (width, rank).
        last: The coefficients with which the last entry of the augmented input is computed from a point, (rank,).
        span: The orthonormal basis of the row space of the second layer's gradient, (width + 1, rank of this gradient).
        activation: The activation between the layers.
    """

    layer: Tensor
    last: Tensor
    span: Tensor
    activation: Activation

    def onto_plane(self, points: Tensor) -> Tensor:
        """Move each point to the nearest point for which the entry that is appended to the input equals 1."""
        return onto_plane(points, self.last)

    def directions(self) -> Tensor:
        """Return an orthonormal basis of all directions that leave the last entry of the augmented input unchanged.

        The augmented input is the input of the first layer with an appended 1.
        """
        return plane_directions(self.last)

    def residuals(self, points: Tensor) -> Tensor:
        """Return the squared residual of each point."""
        return self.evaluate(points)[-1]

    def evaluate(self, points: Tensor) -> State:
        """Return the slopes, the activations, their parts outside the space with basis ``span``, and the residuals.

        The residuals are squared.
        """
        values, slope = self.activation(points @ self.layer.T)
        augmented = torch.cat([values, torch.ones_like(values[:, :1])], 1)
        norm = augmented.norm(dim=1, keepdim=True)
        unit = augmented / norm
        miss = unit - (unit @ self.span) @ self.span.T
        return slope / norm, unit, miss, miss.square().sum(1)

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point.

        Args:
            directions: The directions in which the search may move a point, one in each column.
            state: The result of :meth:`evaluate`.
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
    """Move each point to the nearest point for which the last entry of the augmented input is 1.

    The augmented input is an input of the first dense layer with an appended 1 for the bias.

    Args:
        points: The points, as coordinates of augmented inputs in the row space of the first layer's gradient.
        last: The coefficients with which the last entry of the augmented input is computed from coordinates.
    """
    gap = 1 - points @ last
    return points + gap[:, None] * last / last.square().sum()


def plane_directions(last: Tensor) -> Tensor:
    """Return an orthonormal basis of all directions that leave the last entry of the augmented input unchanged.

    The augmented input is an input of the first dense layer with an appended 1 for the bias.

    Args:
        last: The coefficients with which the last entry of the augmented input is computed from its coordinates.
    """
    complete: Tensor = torch.linalg.qr(last[:, None], mode="complete")[0]
    return complete[:, 1:]


def corrections(a: Tensor, b: Tensor, residual: Tensor) -> Tensor:
    r"""Return the terms :math:`\lVert r \rVert^2 b b^T - a b^T - b a^T` of the Gauss-Newton matrix for each point.

    The residual :math:`r` is the part of a vector :math:`u / \lVert u \rVert` outside a given space. The Jacobian of
    :math:`u`, divided by :math:`\lVert u \rVert`, is :math:`A`.

    Args:
        a: The vector :math:`a = A^T r` of each point, one in each row.
        b: The vector :math:`b = A^T u / \lVert u \rVert` of each point, one in each row.
        residual: The squared residual :math:`\lVert r \rVert^2` of each point.
    """
    cross = a[:, :, None] * b[:, None, :]
    return residual[:, None, None] * b[:, :, None] * b[:, None, :] - cross - cross.mT


def search(problem: LeastSquares, starts: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Minimise the residual of a problem from each starting point, and return the final points and squared residuals.

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
