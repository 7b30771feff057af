"""What the attacker believes of samples before seeing any update, as a term of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from leakscope.inversion.checks import not_negative
from leakscope.observation import DataSpec


class Prior(Protocol):
    """A term of the loss that depends on the samples alone."""

    name: str

    def applies(self, data: DataSpec) -> bool:
        """Whether the term makes sense for this kind of data."""
        ...

    def __call__(self, inputs: Tensor) -> Tensor:
        """The term's value at inputs (samples first) on the model's side of the boundary."""
        ...


@dataclass(frozen=True)
class TotalVariation:
    """Neighbouring pixels are alike: the mean absolute difference, down plus across (Geiping et al. 2020)."""

    weight: float = 1e-4
    name = "tv"

    def __post_init__(self) -> None:
        not_negative("the weight of total variation", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Images of more than one pixel in each direction."""
        return self.weight > 0 and data.is_image and min(data.shape[1:]) > 1

    def __call__(self, inputs: Tensor) -> Tensor:
        """The weighted total variation."""
        down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().mean()
        across = (inputs[..., :, 1:] - inputs[..., :, :-1]).abs().mean()
        return self.weight * (down + across)
