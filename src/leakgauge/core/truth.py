"""What only the audit may see: the client's private samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec


@dataclass(frozen=True, eq=False)
class Truth:
    """The private side of one client's update. No attack may import this module (a contract in CI checks it).

    ``inputs`` are as a person sees them (pixels in [0, 1]), ``targets`` the labels or regression targets,
    ``order`` the rows of ``inputs`` in the order the client trained on them, one tensor a local step.
    ``reference_inputs`` and ``reference_targets`` are other people's samples of the same kind: what an
    attacker could guess with *without* the update, from which the chance level is computed.
    """

    inputs: Tensor
    targets: Tensor
    data: DataSpec
    order: tuple[Tensor, ...] = ()
    reference_inputs: Tensor | None = None
    reference_targets: Tensor | None = None

    def __post_init__(self) -> None:
        if tuple(self.inputs.shape[1:]) != self.data.shape:
            raise InvalidInput(
                f"the truth's samples have shape {tuple(self.inputs.shape[1:])}, "
                f"but the data is described as {self.data.shape}"
            )
        if len(self.inputs) != len(self.targets):
            raise InvalidInput(f"{len(self.inputs)} samples but {len(self.targets)} targets")
        if self.reference_inputs is None:
            if self.reference_targets is not None:
                raise InvalidInput("there are reference targets but no reference samples")
        elif tuple(self.reference_inputs.shape[1:]) != self.data.shape:
            raise InvalidInput(
                f"the reference samples have shape {tuple(self.reference_inputs.shape[1:])}, "
                f"but the data is described as {self.data.shape}"
            )
        elif self.reference_targets is not None and len(self.reference_inputs) != len(self.reference_targets):
            raise InvalidInput(
                f"{len(self.reference_inputs)} reference samples but {len(self.reference_targets)} targets"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def label_counts(self) -> Tensor:
        """How many samples the client has of each class."""
        if self.data.classes is None:
            raise InvalidInput("label counts exist only for classification; this data is a regression")
        return torch.bincount(self.targets, minlength=self.data.classes)
