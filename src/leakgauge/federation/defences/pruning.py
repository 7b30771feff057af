r"""Pruning, which sets some values of gradients to zero (Zhu et al. 2019, DLG, and DLF, appendix B.1).

``RandomPruning`` sets every value of each sample's gradient to zero with probability :math:`p`. The zeros are drawn
anew for each sample and local step. The remaining values are not scaled up, so the mean gradient is multiplied by
:math:`1 - p`. The code of DLF's authors draws the zeros once for each position of a sample within an epoch, and uses
them again in every epoch. Their code treats noise in the same way (:mod:`leakgauge.federation.defences.noise`).

``TopK`` keeps the values with the largest magnitudes in a whole gradient. Sparsified communication does the same (Lin
et al. 2018), but it also accumulates the small values locally and sends them later. Here the small values are never
sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.core.checks import not_negative, positive
from leakgauge.core.params import Params, elementwise
from leakgauge.federation.defence import GradientDefence, Place


@dataclass(frozen=True)
class RandomPruning(GradientDefence):
    """A defence that sets each value of a gradient to zero with ``probability`` (DLF, appendix B.1, uses 0.2 and 0.5).

    Args:
        probability: The probability that a value is set to zero.
        on: The gradients that are pruned, which are ``"samples"``, ``"gradient"`` or ``"update"`` as in
            :class:`~leakgauge.federation.defence.GradientDefence`.
    """

    name: ClassVar[str] = "random_pruning"
    probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("the probability of random pruning", self.probability, below=1, hint="0 is no defence")

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the gradients with some values set to zero."""

        def pruned(value: Tensor) -> Tensor:
            remaining = torch.rand(value.shape, generator=draw) >= self.probability
            return value * remaining.to(value.device)

        return elementwise(pruned, gradients)


@dataclass(frozen=True)
class TopK(GradientDefence):
    """A defence that keeps the values of the largest magnitudes over all layers, and sets all other values to zero.

    Args:
        keep: The share of the values that is kept.
        on: The gradients that are pruned, which are ``"samples"``, ``"gradient"`` or ``"update"`` as in
            :class:`~leakgauge.federation.defence.GradientDefence`.
    """

    name: ClassVar[str] = "top_k"
    keep: float
    on: Place = field(default="update", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("the share that top-k keeps", self.keep, up_to=1, hint="1 is no defence, 0 sends nothing")

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the gradients with the small values set to zero."""
        magnitudes = torch.cat([value.flatten(1).abs().double() for value in gradients.values()], 1)
        count = max(1, round(self.keep * magnitudes.shape[1]))
        least = magnitudes.kthvalue(magnitudes.shape[1] - count + 1, 1).values

        def pruned(value: Tensor) -> Tensor:
            limit = least.reshape(-1, *[1] * (value.dim() - 1))
            return torch.where(value.abs() >= limit, value, 0)

        return elementwise(pruned, gradients)
