"""The rounding of gradients to few bits per value (Alistarh et al. 2017, QSGD, with one scale for each layer).

Let :math:`m` be the largest magnitude in a tensor. The levels of the tensor are evenly spaced from :math:`-m` to
:math:`m`. Each value is rounded up or down at random to a neighbouring level, such that the average rounded value is
the value itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import Params, elementwise
from leakgauge.federation.defence import GradientDefence, Place


@dataclass(frozen=True)
class Quantisation(GradientDefence):
    """A defence that rounds each value of a gradient at random to one of ``2 ** bits - 1`` levels.

    Args:
        bits: The number of bits for each value, from 2 to 16. A single bit would leave only zeros.
        on: The gradients that are rounded, which are ``"samples"``, ``"gradient"`` or ``"update"`` as in
            :class:`~leakgauge.federation.defence.GradientDefence`.
    """

    name: ClassVar[str] = "quantisation"
    bits: int
    on: Place = field(default="update", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or not 2 <= self.bits <= 16:
            raise InvalidInput(f"the bits of quantisation must be a whole number from 2 to 16, not {self.bits!r}")

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the rounded gradients."""
        levels = 2 ** (self.bits - 1) - 1

        def rounded(value: Tensor) -> Tensor:
            largest = value.flatten(1).abs().amax(1) if value.numel() else value.new_zeros(len(value))
            unit = largest.clamp_min(torch.finfo(value.dtype).tiny).reshape(-1, *[1] * (value.dim() - 1)) / levels
            dither = torch.rand(value.shape, generator=draw).to(value)
            nearest: Tensor = (value / unit + dither).floor().clamp(-levels, levels) * unit
            return nearest

        return elementwise(rounded, gradients)
