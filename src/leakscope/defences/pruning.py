r"""Parts of each sample's gradient left out (after Zhu et al. 2019, DLG; DLF, appendix B.1).

Every number of each sample's gradient is set to zero with probability :math:`p`, drawn anew for each sample and
local step. What is left is not scaled up, so that the mean gradient shrinks by :math:`1 - p`. (The authors' code
draws once for each place in an epoch and uses it again in every epoch; see :mod:`leakscope.defences.noise`.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.defences.checks import strength
from leakscope.federated.defence import SampleGradientDefence
from leakscope.params import Params, elementwise


@dataclass(frozen=True)
class RandomPruning(SampleGradientDefence):
    """Each number of each sample's gradient set to zero with ``probability`` (DLF, appendix B.1: 0.2 and 0.5)."""

    probability: float

    def __post_init__(self) -> None:
        strength("the probability of random pruning", self.probability, below=1)

    def on_sample_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """The gradients with holes."""

        def pruned(value: Tensor) -> Tensor:
            kept = torch.rand(value.shape, generator=draw) >= self.probability
            return value * kept.to(value.device)

        return elementwise(pruned, gradients)
