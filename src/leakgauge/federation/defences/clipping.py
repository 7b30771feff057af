"""The clipping of gradients to a largest norm (Abadi et al. 2016, algorithm 1, without the noise).

A gradient that is longer than the limit is scaled down and keeps its direction. Clipping alone gives no guarantee. It
hides the length of a gradient, but an attack that compares only directions does not need the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.core.checks import positive
from leakgauge.core.params import Params, elementwise
from leakgauge.federation.defence import GradientDefence


@dataclass(frozen=True)
class Clipping(GradientDefence):
    """A defence that scales each gradient down, so that its l2 norm over all layers is at most ``norm``.

    Args:
        norm: The largest norm of a gradient.
        on: The gradients that are clipped, which are ``"samples"``, ``"gradient"`` or ``"update"`` as in
            :class:`~leakgauge.federation.defence.GradientDefence`.
    """

    name: ClassVar[str] = "clipping"
    norm: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("the norm of clipping", self.norm, up_to=1e12)

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the gradients, scaled down so that no gradient is longer than ``norm``."""
        squares = torch.stack([value.flatten(1).double().square().sum(1) for value in gradients.values()])
        factor = (self.norm / squares.sum(0).sqrt()).clamp_max(1)

        def clipped(value: Tensor) -> Tensor:
            return value * factor.to(value.dtype).reshape(-1, *[1] * (value.dim() - 1))

        return elementwise(clipped, gradients)
