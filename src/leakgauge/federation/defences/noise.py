r"""Random noise on every value of a gradient (DLF, appendix B.1).

By default, the noise is added to the gradient of each sample at each local step. Let :math:`g_i` be the gradient of
sample :math:`i` in a batch of :math:`m` samples. The client descends along

.. math:: \frac{1}{m} \sum_{i=1}^m (g_i + n_i), \qquad n_i \text{ drawn anew for each sample and step},

so the noise on the gradient of the batch is smaller by a factor of :math:`\sqrt m` than the noise on the gradient of
one sample. With ``on="gradient"``, the noise is added to the gradient of the batch at each step. With ``on="update"``,
the noise is added once, to the update that is sent. There is no clipping, and therefore no guarantee of differential
privacy. :class:`~leakgauge.federation.defences.dpsgd.DPSGD` gives such a guarantee.

The code of DLF's authors draws :math:`n_i` once for each position of a sample within an epoch, and uses it again in
every epoch. Over :math:`E` epochs, the noise of the authors' code adds up to :math:`\sqrt E` times the noise of the
fresh draws here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.core.checks import not_negative
from leakgauge.core.params import Params, elementwise
from leakgauge.federation.defence import GradientDefence


@dataclass(frozen=True)
class GaussianNoise(GradientDefence):
    """A defence that adds Gaussian noise to gradients (DLF, appendix B.1, uses a ``sigma`` of 0.01 and of 0.03).

    Args:
        sigma: The standard deviation of the noise.
        on: The gradients that get noise, which are ``"samples"``, ``"gradient"`` or ``"update"`` as in
            :class:`~leakgauge.federation.defence.GradientDefence`.
    """

    name: ClassVar[str] = "gaussian_noise"
    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("the sigma of Gaussian noise", self.sigma, below=1e12, hint="0 is no defence")

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the gradients with added noise."""

        def noisy(value: Tensor) -> Tensor:
            noise = torch.randn(value.shape, generator=draw, dtype=drawn_type(value))
            return value + self.sigma * noise.to(value)

        return elementwise(noisy, gradients)


@dataclass(frozen=True)
class LaplacianNoise(GradientDefence):
    """A defence that adds Laplacian noise to gradients (DLF, appendix B.1, uses a ``scale`` of 0.01 and of 0.02).

    Args:
        scale: The scale of the noise. The standard deviation is the scale times the square root of two.
        on: The gradients that get noise, which are ``"samples"``, ``"gradient"`` or ``"update"`` as in
            :class:`~leakgauge.federation.defence.GradientDefence`.
    """

    name: ClassVar[str] = "laplacian_noise"
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("the scale of Laplacian noise", self.scale, below=1e12, hint="0 is no defence")

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the gradients with added noise."""

        def noisy(value: Tensor) -> Tensor:
            # The inverse of the distribution function is infinite at both ends of the interval, hence the clamp.
            uniform = 2 * torch.rand(value.shape, generator=draw, dtype=drawn_type(value)) - 1
            distance = -torch.log1p(-uniform.abs().clamp_max(1 - torch.finfo(uniform.dtype).eps))
            return value + self.scale * (uniform.sign() * distance).to(value)

        return elementwise(noisy, gradients)


def drawn_type(value: Tensor) -> torch.dtype:
    """Return the number type of the noise for a tensor: the type of the tensor, but at least single precision."""
    return torch.promote_types(value.dtype, torch.float32)
