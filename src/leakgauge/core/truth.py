"""The private samples of a client. Only the evaluation may use them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Truth:
    """The private samples from which one client computed its update.

    No attack may import this module. The import checks in CI enforce this rule.

    Args:
        inputs: The samples without normalisation, with pixels in [0, 1].
        targets: The labels, or the targets of a regression.
        data: The shape and the normalisation of one sample.
        order: One tensor for each step of local training. It holds the indices of the samples that the step used.
        reference_inputs: Samples that other people own. The chance level is the score of a guess that is made from
            these samples, without the update.
        reference_targets: The targets of the reference samples.
        trained: The samples as the client trained on them, with their order, if random changes such as flips made them
            others in each epoch. By default, the client trained on ``inputs``.
    """

    inputs: Tensor
    targets: Tensor
    data: DataSpec
    order: tuple[Tensor, ...] = ()
    reference_inputs: Tensor | None = None
    reference_targets: Tensor | None = None
    trained: Truth | None = None

    def __post_init__(self) -> None:
        self._check_shape("the truth's samples", self.inputs)
        if len(self.inputs) != len(self.targets):
            raise InvalidInput(f"{len(self.inputs)} samples but {len(self.targets)} targets")
        if self.reference_inputs is None:
            if self.reference_targets is not None:
                raise InvalidInput("there are reference targets but no reference samples")
            return
        self._check_shape("the reference samples", self.reference_inputs)
        if self.reference_targets is not None and len(self.reference_inputs) != len(self.reference_targets):
            raise InvalidInput(
                f"{len(self.reference_inputs)} reference samples but {len(self.reference_targets)} targets"
            )

    def _check_shape(self, subject: str, samples: Tensor) -> None:
        shape = tuple(samples.shape[1:])
        if shape != self.data.shape:
            raise InvalidInput(f"{subject} have shape {shape}, but the data is described as {self.data.shape}")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def label_counts(self) -> Tensor:
        """The number of the client's samples in each class."""
        if self.data.classes is None:
            raise InvalidInput("label counts exist only for classification, but this data is a regression")
        return torch.bincount(self.targets, minlength=self.data.classes)
