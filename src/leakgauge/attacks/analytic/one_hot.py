r"""Equations for the one-hot columns of a table, which help to find its rows in the span of a dense layer's gradient.

A table such as UCI Adult has few numbers and many one-hot columns, whose values :math:`h` are 0 or 1. The rows of a
batch are then often linearly dependent, even if they are all different: the columns of one feature always add up to
1, and rare values occur in no row. The gradient of a first dense layer with one-hot inputs can therefore have a rank
below the number of samples, and its row space alone says little. But a point of this space that is a row of the table
also fulfils :math:`h^2 = h` in every one-hot column. These equations are added to those of :mod:`.levenberg`. TabLeak
(Vero et al., ICML 2023) uses the same knowledge as a softmax over the columns of each feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.levenberg import Problem, State
from leakgauge.attacks.analytic.two_layers import TwoLayers


@dataclass(frozen=True, eq=False)
class OneHotProblem(Problem):
    """The least-squares problem for one row of a table with one-hot columns.

    The squared residual is that of :class:`.Problem` plus the mean of :math:`(h^2 - h)^2` over all one-hot columns.

    Args:
        hot: The matrix that maps points to the values of the one-hot columns, (columns, rank).
    """

    hot: Tensor

    def evaluate(self, points: Tensor) -> State:
        """Return the values of the one-hot columns, those of :class:`.Problem`, and the squared residuals.

        Args:
            points: The points, one in each row.
        """
        values = points @ self.hot.T
        state = super().evaluate(points)
        return values, *state, state[-1] + (values.square() - values).square().mean(1)

    def residuals_of_span(self, points: Tensor) -> Tensor:
        """Return the squared residual of each point without the part of the one-hot columns.

        Args:
            points: The points, one in each row.
        """
        return Problem.evaluate(self, points)[-1]

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point.

        Args:
            directions: The directions in which the search may move a point, one in each column.
            state: The result of :meth:`evaluate`.
        """
        gradient, matrix = super().normal_equations(directions, state[1:-1])
        moves, values = self.hot @ directions, state[0]  # (columns, unknowns), (points, columns)
        slope = 2 * values - 1
        count, (columns, unknowns) = len(values), moves.shape
        weighted = (slope.square()[:, None, :] * moves.T).reshape(count * unknowns, columns)
        square = (weighted @ moves).reshape(count, unknowns, unknowns)
        return gradient + (slope * (values.square() - values)) @ moves / columns, matrix + square / columns


def one_hot_columns(chain: TwoLayers) -> Tensor | None:
    """Return the matrix that maps augmented inputs of the first layer to the values of a table's one-hot columns.

    An augmented input is an input of the layer with an appended 1. The result is ``None`` if the layer does not get
    the samples themselves, or if the samples have no one-hot columns.

    Args:
        chain: The two dense layers.
    """
    data = chain.data
    hot = [column for columns in data.one_hot_groups.values() for column in columns]
    if not hot or chain.entrance is None:
        return None
    order, scale, shift = chain.entrance.order, chain.entrance.scale, chain.entrance.shift
    mean, std = (value.expand(len(order)) for value in data.statistics(scale))
    matrix = torch.zeros(len(order), len(order) + 1, dtype=scale.dtype, device=chain.device)
    matrix[order, torch.arange(len(order), device=chain.device)] = std[order] / scale
    matrix[order, -1] = mean[order] - std[order] * shift / scale
    return matrix[hot]
