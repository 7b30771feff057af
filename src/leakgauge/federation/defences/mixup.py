r"""Training on mixtures of samples (Zhang et al. 2018), drawn anew at each local step.

.. math:: \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}, \qquad
          \tilde y_i = \lambda y_i + (1 - \lambda) y_{\pi(i)}, \qquad \lambda \sim \mathrm{Beta}(\alpha, \alpha),

with one :math:`\lambda` and one random order :math:`\pi` of the batch at each step. The samples that an attack rebuilds
are then mixtures too. A batch of one sample is not changed. LMRA (appendix D.4) always takes the average,
:math:`\lambda = 1/2`, which is ``Mixup(share=0.5)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from leakgauge.core.checks import positive
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.defence import Batch, BatchDefence


@dataclass(frozen=True)
class Mixup(BatchDefence):
    """A defence that mixes each sample and its label with another sample of the batch and its label.

    Args:
        alpha: The parameter of the Beta distribution. A larger value makes the mixtures more even.
        share: The fixed share of a sample in its mixture. By default, the share is random.
    """

    name: ClassVar[str] = "mixup"
    alpha: float = 1.0
    share: float | None = None

    def __post_init__(self) -> None:
        positive("the alpha of mixup", self.alpha, up_to=1e6)
        if self.share is not None:
            positive(
                "the share of a sample in its mixture", self.share, up_to=1, hint="1 is no defence, 0 sends nothing"
            )

    def on_batch(self, batch: Batch, classes: int | None, draw: torch.Generator) -> Batch:
        """Return the mixed batch. Class labels become class probabilities."""
        inputs, targets = batch
        weight = self._weight(draw) if self.share is None else self.share
        partner = torch.randperm(len(inputs), generator=draw).to(inputs.device)
        if classes is not None and not targets.is_floating_point():
            targets = F.one_hot(targets, classes).to(inputs)
        if not targets.is_floating_point():
            raise InvalidInput("mixup cannot mix masks of whole numbers. Store labels of 0 and 1 as floats")
        return torch.lerp(inputs[partner], inputs, weight), torch.lerp(targets[partner], targets, weight)

    def _weight(self, draw: torch.Generator) -> float:
        # A Beta variable is a ratio of two Gamma variables, which torch can draw with a generator.
        first, second = torch._standard_gamma(torch.full((2,), float(self.alpha)), generator=draw).tolist()
        return float(first / (first + second)) if first + second > 0 else 0.5
