r"""Checks that a point is one sample and not a mixture of samples.

A point is computed from a neuron of the first layer, as the gradient of the neuron's weights divided by the gradient of
its bias. If a neuron is active for several samples, its point is a mixture :math:`\sum_i r_i x_i / \sum_i r_i` of these
samples. Several neurons may agree on the same mixture, for example with one hidden layer and two classes. Two checks
distinguish a sample from a mixture. Both need a layer whose gradient :math:`G` does not have full rank.

1. With a known label, the known network gives the gradient :math:`\delta` of the point. For a sample, :math:`\delta`
   lies in the column space of :math:`G`, and :math:`\delta^T (G^+)^T [x, 1] = N / m` for :math:`m` copies of the
   sample.
2. Without a label, the check uses the rows of :math:`G` that belong to neurons with the output 0 for the point (silent
   neurons). For a sample, these rows are sums of the other samples only. Their rank is then one less than the rank of
   :math:`G`, and :math:`[x, 1]` is not in their row space. A mixture is in this row space, because some of these
   neurons are active for only one of the mixed samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.attacks.analytic.layer_span import LayerSpan, first_noise, rank_of

#: The smallest share of a sample that lies outside the row space of the other samples.
APART = 1e-3

#: The number of silent neurons for each sample without which the second check is no proof.
ENOUGH = 6


class Purity:
    """The gradient of the first layer, and two checks whether an input of this layer is a single sample.

    Args:
        rows: The gradient of the layer's kernel and bias, with one row for each neuron. The bias is the last column.
        precision: The relative precision of the values in the gradient.
        samples: The number of samples. ``None`` if it is unknown.
    """

    def __init__(self, rows: Tensor, precision: float, samples: int | None) -> None:
        self.rows, self.precision, self.samples = rows, precision, samples
        self.rank = rank_of(rows, precision, samples or 0)
        # A higher rank cannot be distinguished from noise.
        self.separates = 0 < self.rank <= first_noise(rows, torch.linalg.svdvals(rows))
        self.span = LayerSpan.of(rows, max(1, self.rank))

    @property
    def most_copies(self) -> int:
        """The largest number of times that one sample may occur among the client's samples."""
        samples = self.samples or 1
        return max(1, samples - self.rank + 1) if self.separates else samples

    def errors(self, gradients: Tensor, points: Tensor, copies: Tensor) -> Tensor:
        """Return an error for each point, which is near 0 if the point is a single sample.

        A mixture, which is a weighted mean of several samples, usually has a larger error.

        Args:
            gradients: The gradient of each point's loss, with its label, with respect to the outputs of the layer.
            points: The inputs of the layer with an appended 1, one row for each point.
            copies: For each point, the number of times that this sample occurs among the client's samples.
        """
        numbers = self.span.coefficients(gradients, points) * copies / (self.samples or 1)
        return torch.maximum((numbers - 1).abs(), self.span.outside(gradients)).nan_to_num(torch.inf)

    def alone(self, points: Tensor, silent: Tensor) -> Tensor:
        """Return whether each point is proven to be one sample and not a weighted mean of several samples.

        The labels are not needed.

        Args:
            points: The inputs of the layer with an appended 1, one row for each point.
            silent: Whether each neuron has the output 0 for each point, with one row for each point.
        """
        if not self.separates or self.rank != self.samples:
            return torch.zeros(len(points), dtype=torch.bool, device=points.device)
        checks = [self._apart(point, self.rows[neurons]) for point, neurons in zip(points, silent, strict=True)]
        return torch.tensor(checks, dtype=torch.bool, device=points.device)

    def _apart(self, point: Tensor, rows: Tensor) -> bool:
        others = self.rank - 1
        if others == 0:
            return True
        if (
            int(rows.any(1).sum()) < ENOUGH * self.rank
            or rows.shape[1] <= others
            or rank_of(rows, self.precision) != others
        ):
            return False
        basis = LayerSpan.of(rows, others).right
        return float((point - basis @ (basis.T @ point)).norm()) > APART * float(point.norm())
