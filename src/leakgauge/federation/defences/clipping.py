"""Gradients scaled down to a largest norm (Abadi et al. 2016, algorithm 1, without the noise).

One that is longer than the limit keeps its direction. Alone this is no guarantee of anything: it hides how large a
gradient was, which a scale-free attack does not ask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.checks import positive
from leakgauge.core.params import Params, elementwise
from leakgauge.federation.defence import GradientDefence


@dataclass(frozen=True)
class Clipping(GradientDefence):
    """Each gradient scaled to an l2 norm of at most ``norm`` over all layers."""

    norm: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("the norm of clipping", self.norm)

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """The gradients, none longer than the limit."""
        squares = torch.stack([value.flatten(1).double().square().sum(1) for value in gradients.values()])
        factor = (self.norm / squares.sum(0).sqrt()).clamp_max(1)

        def clipped(value: Tensor) -> Tensor:
            return value * factor.to(value.dtype).reshape(-1, *[1] * (value.dim() - 1))

        return elementwise(clipped, gradients)
