r"""Parts of a gradient left out (after Zhu et al. 2019, DLG; DLF, appendix B.1).

``RandomPruning`` sets every number of each sample's gradient to zero with probability :math:`p`, drawn anew for each
sample and local step. What is left is not scaled up, so that the mean gradient shrinks by :math:`1 - p`. (The
authors' code draws once for each place in an epoch and uses it again in every epoch; see
:mod:`leakgauge.federation.defences.noise`.)

``TopK`` keeps the numbers of the largest magnitude of a whole gradient, as sparsified communication does (Lin et al.
2018, without its local accumulation): what is small is never sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.core.checks import not_negative, positive
from leakgauge.core.params import Params, elementwise
from leakgauge.federation.defence import GradientDefence, Place


@dataclass(frozen=True)
class RandomPruning(GradientDefence):
    """Each number set to zero with ``probability`` (DLF, appendix B.1: 0.2 and 0.5)."""

    probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("the probability of random pruning", self.probability, below=1, hint="0 is no defence")

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """The gradients with holes."""

        def pruned(value: Tensor) -> Tensor:
            kept = torch.rand(value.shape, generator=draw) >= self.probability
            return value * kept.to(value.device)

        return elementwise(pruned, gradients)


@dataclass(frozen=True)
class TopK(GradientDefence):
    """Only the largest ``keep`` of a gradient's numbers, by magnitude over all layers; the others are zero."""

    keep: float
    on: Place = field(default="update", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("the share that top-k keeps", self.keep, up_to=1, hint="1 is no defence, 0 sends nothing")

    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """The gradients without what is small."""
        sizes = torch.cat([value.flatten(1).abs().double() for value in gradients.values()], 1)
        kept = max(1, round(self.keep * sizes.shape[1]))
        least = sizes.kthvalue(sizes.shape[1] - kept + 1, 1).values

        def pruned(value: Tensor) -> Tensor:
            limit = least.reshape(-1, *[1] * (value.dim() - 1))
            return torch.where(value.abs() >= limit, value, 0)

        return elementwise(pruned, gradients)
