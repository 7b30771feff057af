r"""The search for samples that enter a dense layer, if the layer has a smooth activation such as the sigmoid.

The inputs of all samples lie in the row space of the first dense layer's gradient. An input with the coordinates
:math:`c` in this space has the outputs :math:`z = M c`. The gradient at the outputs of the next dense layer lies in the
column space of the next layer's gradient, and has the coordinates :math:`b` in this space. A known matrix :math:`K`
maps :math:`b` to the gradient at the activations. With the slopes :math:`\phi'` of the activation, the gradient at the
outputs of the first layer is :math:`\delta = \phi'(z) \odot K b`. For a sample of the client, :math:`\delta` lies in
the column space of the first layer's gradient, which has the orthonormal basis :math:`L`. The Levenberg-Marquardt
method (:mod:`.levenberg`) minimises the relative distance

.. math:: \lVert (I - L L^T)\, \phi'(M c) \odot K b \rVert / \lVert \phi'(M c) \odot K b \rVert

over :math:`c` and :math:`b`. The problem needs neither labels nor a loss function. The number of equations is the width
of the first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.levenberg import State, corrections, onto_plane, plane_directions

#: A function that returns slopes of an activation and the derivatives of these slopes.
Curvature = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class CurveProblem:
    """The least-squares problem for the input of one sample and for the sample's gradient at the next layer.

    A point is a vector of coordinates. The first entries are the coordinates of the input in the row space of the first
    layer's gradient. The other entries are the coordinates of the sample's gradient at the next layer's outputs, in the
    column space of the next layer's gradient.

    Args:
        layer: The matrix that maps coordinates in the row space of the first layer's gradient to outputs, (width,
            rank).
        last: The coefficients that compute the last entry of an input from its coordinates, (rank,). This entry must
            be 1. ``None`` for a layer without bias.
        left: The orthonormal basis of the column space of the first layer's gradient, (width, rank).
        downstream: The matrix that maps coordinates in the column space of the next layer's gradient to gradients at
            the first layer's activations, (width, rank of the next layer's gradient).
        curvature: The function that returns the slopes of the activation, and the derivatives of these slopes.
    """

    layer: Tensor
    last: Tensor | None
    left: Tensor
    downstream: Tensor
    curvature: Curvature

    def starts(self, points: Tensor) -> Tensor:
        """Complete the starting points. Append to each input the gradient at the next layer that fits this input best.

        Args:
            points: The coordinates of the inputs, one row for each starting point.
        """
        slope, _ = self.curvature(points @ self.layer.T)
        moves = slope[:, :, None] * self.downstream
        inside = self.left.T @ moves
        square = moves.mT @ moves
        floor = 1e-12 * square.diagonal(dim1=1, dim2=2).amax(1).clamp_min(1e-300)
        size = square.shape[1]
        factor = torch.linalg.cholesky(square + floor[:, None, None] * torch.eye(size).to(square))
        outside = torch.linalg.solve_triangular(factor, square - inside.mT @ inside, upper=False)
        outside = torch.linalg.solve_triangular(factor, outside.mT, upper=False)
        smallest = torch.linalg.eigh((outside + outside.mT) / 2)[1][:, :, :1]
        gradients = torch.linalg.solve_triangular(factor.mT, smallest, upper=True)[:, :, 0]
        return torch.cat([points, gradients / gradients.norm(dim=1, keepdim=True)], 1)

    def onto_plane(self, points: Tensor) -> Tensor:
        """Move each point to the nearest point for which the last entry of the input is 1."""
        if self.last is None:
            return points
        rank = len(self.last)
        return torch.cat([onto_plane(points[:, :rank], self.last), points[:, rank:]], 1)

    def directions(self) -> Tensor:
        """Return an orthonormal basis of all directions that leave the appended 1 of the input unchanged."""
        rank, size = self.layer.shape[1], self.downstream.shape[1]
        identity = torch.eye(rank).to(self.layer)
        points = identity if self.last is None else plane_directions(self.last)
        blocks: Tensor = torch.block_diag(points, torch.eye(size).to(self.layer))
        return blocks

    def evaluate(self, points: Tensor) -> State:
        """Return the values that :meth:`normal_equations` needs, for each point.

        The values are two factors for the derivatives of the gradient at the first layer's outputs, this gradient with
        length 1, its part outside the column space of the layer's gradient, and the squared length of this part.
        """
        rank = self.layer.shape[1]
        slope, curve = self.curvature(points[:, :rank] @ self.layer.T)
        activations = points[:, rank:] @ self.downstream.T
        gradients = slope * activations
        norm = gradients.norm(dim=1, keepdim=True).clamp_min(1e-300)
        unit = gradients / norm
        miss = unit - (unit @ self.left) @ self.left.T
        return curve * activations / norm, slope / norm, unit, miss, miss.square().sum(1)

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point.

        Args:
            directions: The directions in which the search may move a point, one in each column.
            state: The result of :meth:`evaluate`.
        """
        curve, slope, unit, miss, residual = state
        rank, free = self.layer.shape[1], directions.shape[1] - self.downstream.shape[1]
        moves = self.layer @ directions[:rank, :free]
        jacobian = torch.cat([curve[:, :, None] * moves, slope[:, :, None] * self.downstream], 2)
        inside = self.left.T @ jacobian
        a = (jacobian.mT @ miss[:, :, None])[:, :, 0]
        b = (jacobian.mT @ unit[:, :, None])[:, :, 0]
        matrix = jacobian.mT @ jacobian - inside.mT @ inside + corrections(a, b, residual)
        return a - residual[:, None] * b, matrix
