"""What the attacker believes of samples before seeing any update, as a term of the loss."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.core.checks import not_negative
from leakgauge.core.errors import UnknownName
from leakgauge.core.observation import DataSpec
from leakgauge.core.seeding import generator

Summary = Literal["mean", "max", "conv+mean", "conv+max"]
Distance = Literal["l1", "l2"]
SUMMARIES: tuple[str, ...] = get_args(Summary)
DISTANCES: tuple[str, ...] = get_args(Distance)


class Prior(Protocol):
    """A term of the loss that depends on the samples alone."""

    name: str

    def applies(self, data: DataSpec) -> bool:
        """Whether the term makes sense for this kind of data."""
        ...

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """The term's value at inputs on the model's side of the boundary: (epochs, samples, ...).

        There is one epoch where all share their variables.
        """
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
        return self.weight > 0 and _has_neighbours(data)

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """The weighted total variation."""
        down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().mean()
        across = (inputs[..., :, 1:] - inputs[..., :, :-1]).abs().mean()
        return self.weight * (down + across)


@dataclass(frozen=True)
class SquaredVariation:
    """Neighbouring pixels are alike: squared differences summed over each image, around its edges (DLF)."""

    weight: float = 1e-3
    name = "tv"

    def __post_init__(self) -> None:
        not_negative("the weight of squared variation", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Images of more than one pixel in each direction."""
        return self.weight > 0 and _has_neighbours(data)

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """The weighted variation, averaged over images."""
        images = inputs.flatten(0, -4)
        down, across = (images - images.roll(1, -2)).square(), (images - images.roll(1, -1)).square()
        return self.weight * (down + across).flatten(1).sum(1).mean()


@dataclass(frozen=True)
class PixelRange:
    """Pixels lie in [0, 1]: the squared distance from it, summed over each image (DLF's clipping term)."""

    weight: float = 1.0
    name = "range"

    def __post_init__(self) -> None:
        not_negative("the weight of the pixel range", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Data that is bounded."""
        return self.weight > 0 and data.bounded

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """The weighted distance, averaged over samples."""
        seen = data.denormalise(inputs)
        outside = (seen - seen.clamp(0, 1)).square()
        return self.weight * outside.flatten(2).sum(2).mean()


@dataclass(frozen=True)
class EpochOrderInvariant:
    r"""Every epoch holds the same samples, in whatever order (DLF, equation 3):

    .. math:: \lambda\,\frac{1}{E^2}\sum_{e_1, e_2} D\big(g(\{\tilde x_{e_1,i}\}_i), g(\{\tilde x_{e_2,i}\}_i)\big)

    with ``summary`` :math:`g` the mean or the maximum over an epoch's samples, or of a random 3 x 3 convolution
    of them with 96 channels, and ``distance`` :math:`D` the mean of absolute or squared differences.
    """

    weight: float = 1000.0
    summary: Summary = "mean"
    distance: Distance = "l2"
    seed: int = 0
    name = "epochs"

    def __post_init__(self) -> None:
        not_negative("the weight of the order-invariant prior", self.weight)
        for value, valid, what in ((self.summary, SUMMARIES, "summary"), (self.distance, DISTANCES, "distance")):
            if value not in valid:
                raise UnknownName(f"{what} of an epoch", value, valid)

    def applies(self, data: DataSpec) -> bool:
        """Any data; a convolution only to images."""
        return self.weight > 0 and (data.is_image or not self.summary.startswith("conv"))

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """The weighted mean distance between epochs."""
        return self.weight * self.value(inputs)

    def value(self, inputs: Tensor) -> Tensor:
        """The mean distance between epochs, unweighted."""
        features = self._convolved(inputs) if self.summary.startswith("conv") else inputs
        summaries = features.mean(1) if self.summary.endswith("mean") else features.amax(1)
        differences = summaries.unsqueeze(0) - summaries.unsqueeze(1)
        return differences.square().mean() if self.distance == "l2" else differences.abs().mean()

    def _convolved(self, inputs: Tensor) -> Tensor:
        kernel = _kernel(self.seed, inputs.shape[2]).to(inputs)
        features: Tensor = F.conv2d(inputs.flatten(0, 1), kernel, padding=1)
        return features.reshape(*inputs.shape[:2], *features.shape[1:])

    def like(self, reference: EpochOrderInvariant, data: DataSpec, *, epochs: int, samples: int) -> EpochOrderInvariant:
        """This prior with the weight at which it counts as much as ``reference`` at a random start (section 5.4)."""
        start = torch.randn(epochs, samples, *data.shape, generator=generator(self.seed, "start"))
        return replace(self, weight=reference.weight * float(reference.value(start) / self.value(start)))


@dataclass(frozen=True)
class EpochAgreement:
    r"""A sample is the same in every epoch: the squared distance of its copies from their mean,

    .. math:: \lambda\,\frac{1}{E N}\sum_{e, i} \lVert \tilde x_{e,i} - \tfrac1E \sum_{e'} \tilde x_{e',i}\rVert^2.

    Stronger than :class:`EpochOrderInvariant`, which compares sums over all samples, and for copies that lie in the
    same order (``FullSimulation(per_epoch=True, new_orders=True)``): between one set of variables for all epochs (an
    infinite weight) and one for each (none). What freedom it leaves takes up what the unknown orders change.
    """

    weight: float = 0.05
    name = "agreement"

    def __post_init__(self) -> None:
        not_negative("the weight of the epochs' agreement", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Any data."""
        return self.weight > 0

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """The weighted distance, averaged over copies."""
        return self.weight * (inputs - inputs.mean(0)).square().flatten(2).sum(2).mean()


@lru_cache
def _kernel(seed: int, channels: int) -> Tensor:
    """The random convolution's kernel: drawn in a thread of its own, for within ``vmap`` each problem drew another."""

    def draw() -> Tensor:
        kernel = torch.randn(96, channels, 3, 3, generator=generator(seed, "convolution"))
        return kernel / float((9 * channels) ** 0.5)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(draw).result()


def _has_neighbours(data: DataSpec) -> bool:
    return data.is_image and min(data.shape[1:]) > 1
