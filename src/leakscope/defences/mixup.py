r"""Training on mixtures of samples (mixup, Zhang et al. 2018; as LMRA uses it, appendix D.4).

Each sample of a batch is mixed with another one of the batch, and so are their targets:

.. math:: \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}, \qquad
          \tilde y_i = \lambda y_i + (1 - \lambda) y_{\pi(i)},

with :math:`\pi` a random permutation, drawn anew at each local step. LMRA takes the average, :math:`\lambda = 1/2`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.errors import InvalidInput
from leakscope.federated.defence import BatchDefence


@dataclass(frozen=True)
class Mixup(BatchDefence):
    """Every sample mixed with another of its batch; ``share`` is its own part (LMRA, appendix D.4: 0.5; 1 is none)."""

    share: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.share, (int, float)) or isinstance(self.share, bool) or not 0.5 <= self.share <= 1:
            raise InvalidInput(f"the share of a sample in its mixture must lie in 0.5 to 1, not {self.share!r}")

    def on_batch(self, inputs: Tensor, targets: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """The mixtures."""
        other = torch.randperm(len(inputs), generator=draw).to(inputs.device)
        targets = targets if targets.is_floating_point() else targets.to(inputs.dtype)
        return torch.lerp(inputs[other], inputs, self.share), torch.lerp(targets[other], targets, self.share)
