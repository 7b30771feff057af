r"""The gradient of a dense layer as a small matrix in two bases, from which single samples can be subtracted.

A dense layer with a bias has the gradient :math:`G = \frac1N \sum_i m_i \delta_i x_i^T` for :math:`N` samples. Here
:math:`x_i` is the input of the layer with an appended 1, which is called the augmented input, and :math:`\delta_i` is
the gradient at the layer's outputs. The rank of :math:`G` is at most the number of distinct samples. For a true sample,

.. math:: \delta_i^T (G^+)^T x_i = N / m_i ,

where :math:`G^+` is the pseudo-inverse and :math:`m_i` is the number of copies of the sample that the client has,
mostly 1. For wrong inputs or a wrong label, the left-hand side has another value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Singular values up to this many times the noise are noise. Noise has the size of the value at three quarters.
NOISE = 10.0
#: Smaller shares of the largest singular value than this are noise in a gradient with rows or columns of zeros.
SMALL = 1e-4


@dataclass(frozen=True, eq=False)
class LayerSpan:
    """The gradient of one layer as a product ``left @ core @ right.T``, without singular values that are only noise.

    Args:
        left: The orthonormal basis of the column space, (outputs, rank), or of all outputs.
        core: The gradient as a matrix in the bases ``left`` and ``right``, (rank, rank) or (outputs, rank).
        right: The orthonormal basis of the row space, (inputs + 1, rank). The last row belongs to the bias.
    """

    left: Tensor
    core: Tensor
    right: Tensor

    @classmethod
    def of(cls, gradient: Tensor, rank: int) -> LayerSpan:
        """Return a gradient as the product ``left @ core @ right.T``, with only its largest singular values.

        Args:
            gradient: The gradient of a layer's kernel and bias as one matrix. The bias is the last column.
            rank: The number of singular values to keep.
        """
        left, values, right = torch.linalg.svd(gradient, full_matrices=False)
        return cls(left[:, :rank], torch.diag(values[:rank]), right[:rank].T)

    def in_all_outputs(self) -> LayerSpan:
        r"""Return the same gradient with the layer's outputs as the basis ``left``, and with a core of :math:`L S`.

        If the inputs of a layer are linearly dependent, the gradients :math:`\delta_i` of single samples do not lie in
        the column space of the layer's gradient. They can then be subtracted without an error in this form only.
        """
        identity = torch.eye(len(self.left), dtype=self.left.dtype, device=self.left.device)
        return LayerSpan(identity, self.left @ self.core, self.right)

    def reduced(self, rank: int) -> LayerSpan:
        """Return the gradient with only its largest singular values. The attribute ``core`` of the result is diagonal.

        Args:
            rank: The number of singular values to keep.
        """
        inner = LayerSpan.of(self.core, rank)
        return LayerSpan(self.left @ inner.left, inner.core, self.right @ inner.right)

    def without(self, gradients: Tensor, inputs: Tensor, weights: Tensor) -> LayerSpan:
        """Return the gradient minus the part that comes from some samples.

        The result has the same ``left`` and ``right`` as this object, and a new ``core``.

        Args:
            gradients: The gradient of each sample's loss with respect to the layer's outputs.
            inputs: The augmented input of each sample, which is the input with an appended 1.
            weights: The weight of each sample in the gradient of the batch.
        """
        part = (gradients @ self.left).T @ (weights[:, None] * (inputs @ self.right))
        return LayerSpan(self.left, self.core - part, self.right)

    def coefficients(self, gradients: Tensor, inputs: Tensor) -> Tensor:
        r"""Return :math:`\delta^T (G^+)^T x` for each row, where :math:`G^+` is the pseudo-inverse of this gradient.

        For a true sample, this is the number of samples divided by the number of copies of this sample. The attribute
        ``core`` must be diagonal.

        Args:
            gradients: The gradient :math:`\delta` of each row's loss with respect to the layer's outputs.
            inputs: The augmented input :math:`x` of each row, which is the input with an appended 1.
        """
        return ((gradients @ self.left) / self.core.diagonal() * (inputs @ self.right)).sum(1)

    def outside(self, gradients: Tensor) -> Tensor:
        """Return, for each row of ``gradients``, the relative length of its part outside the column space.

        Args:
            gradients: The gradient of each row's loss with respect to the layer's outputs. For a true sample, this
                gradient lies in the column space of the layer's gradient.
        """
        rest = gradients - (gradients @ self.left) @ self.left.T
        share: Tensor = rest.norm(dim=1) / gradients.norm(dim=1).clamp_min(1e-300)
        return share


def rank_of(gradient: Tensor, precision: float, samples: int = 0) -> int:
    """Return the rank of a gradient, which is the number of singular values above rounding errors and noise.

    Args:
        gradient: The gradient of a layer.
        precision: The relative precision of the values in the gradient.
        samples: The number of samples, or 0 if it is unknown. If there are nearly as many samples as singular values,
            no singular value is left from which the noise can be estimated. The rank is then the number of singular
            values above rounding errors.
    """
    values = torch.linalg.svdvals(gradient)
    index = first_noise(gradient, values)
    if samples > index:
        return int((values > NOISE * precision * values[0]).sum())
    floor = max(NOISE * float(values[index]), precision * float(values[0]))
    return int((values > floor).sum())


def largest_rank(gradient: Tensor) -> int:
    """Return the largest possible rank of a gradient.

    It is the number of nonzero rows or the number of nonzero columns, whichever is smaller.

    Args:
        gradient: The gradient of a layer.
    """
    return min(int(gradient.any(0).sum()), int(gradient.any(1).sum()))


def first_noise(gradient: Tensor, values: Tensor) -> int:
    """Return the index of a singular value that is assumed to be noise. The rank of the gradient is at most this index.

    The index is three quarters of the number of singular values. It is lower if many rows or columns are zero, for
    example those of black pixels, because some singular values are then zero and not noise.

    Args:
        gradient: The gradient of a layer.
        values: The singular values of the gradient.
    """
    usual = 3 * len(values) // 4
    nonzero = 7 * largest_rank(gradient) // 8
    return nonzero if nonzero < usual and bool(values[nonzero] < SMALL * values[0]) else usual
