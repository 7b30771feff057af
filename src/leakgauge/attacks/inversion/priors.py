"""Priors, which are terms of the loss that depend on the samples alone."""

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
    """A term of an attack's loss that depends on the samples alone, such as total variation."""

    name: str

    def applies(self, data: DataSpec) -> bool:
        """Return whether the prior can be used for this kind of data."""
        ...

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Return the weighted value of the prior for given samples.

        Args:
            inputs: Normalised inputs, (epochs, samples, ...). If all epochs share the same samples, the first dimension
                is 1.
            data: The kind of data.
        """
        ...


@dataclass(frozen=True)
class TotalVariation:
    """The mean absolute difference of neighbouring pixels, vertical plus horizontal (Geiping et al. 2020).

    In a series, the neighbours are consecutive values of a channel.

    Args:
        weight: The weight of the term.
        opponents: Whether the differences between each two of three channels count as further channels. Edges of a
            colour picture lie at the same place in all channels (double-opponent total variation, Åström and Schnörr
            2016). For other numbers of channels, the option has no effect.
    """

    weight: float = 1e-4
    opponents: bool = False
    name = "tv"

    def __post_init__(self) -> None:
        not_negative("the weight of total variation", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Return whether the data are series, or images of more than one pixel in each direction."""
        return self.weight > 0 and _has_neighbours(data)

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Return the weighted total variation."""
        if data.is_series:
            return self.weight * _steps(inputs, data).abs().mean()
        if self.opponents and data.shape[0] == 3:
            inputs = torch.cat([inputs, inputs - inputs.roll(1, -3)], -3)
        down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().mean()
        across = (inputs[..., :, 1:] - inputs[..., :, :-1]).abs().mean()
        return self.weight * (down + across)


@dataclass(frozen=True)
class SquaredVariation:
    """The squared differences of neighbouring pixels, summed over each image (DLF).

    Opposite edges of an image count as neighbours. In a series, the neighbours are consecutive values of a channel.

    Args:
        weight: The weight of the term.
    """

    weight: float = 1e-3
    name = "tv"

    def __post_init__(self) -> None:
        not_negative("the weight of squared variation", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Return whether the data are series, or images of more than one pixel in each direction."""
        return self.weight > 0 and _has_neighbours(data)

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Return the weighted variation, averaged over samples."""
        if data.is_series:
            return self.weight * _steps(inputs, data).square().flatten(2).sum(2).mean()
        images = inputs.flatten(0, -4)
        down, across = (images - images.roll(1, -2)).square(), (images - images.roll(1, -1)).square()
        return self.weight * (down + across).flatten(1).sum(1).mean()


@dataclass(frozen=True)
class PixelRange:
    """The squared distance of pixels from the interval [0, 1], summed over each image (DLF's clipping term).

    Args:
        weight: The weight of the term.
    """

    weight: float = 1.0
    name = "range"

    def __post_init__(self) -> None:
        not_negative("the weight of the pixel range", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Return whether the values of the data are bounded."""
        return self.weight > 0 and data.bounded

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Return the weighted squared distance of the values from [0, 1], averaged over samples."""
        seen = data.denormalise(inputs)
        outside = (seen - seen.clamp(0, 1)).square()
        return self.weight * outside.flatten(2).sum(2).mean()


@dataclass(frozen=True)
class EpochOrderInvariant:
    r"""The distance between summaries of the epochs, which do not depend on the order of samples (DLF, equation 3).

    .. math:: \lambda\,\frac{1}{E^2}\sum_{e_1, e_2} D\big(g(\{\tilde x_{e_1,i}\}_i), g(\{\tilde x_{e_2,i}\}_i)\big)

    Here :math:`\tilde x_{e,i}` is dummy sample :math:`i` of epoch :math:`e`, :math:`E` is the number of epochs and
    :math:`\lambda` is the weight.

    Args:
        weight: The weight of the term.
        summary: The summary :math:`g` of an epoch. It is the mean or the maximum over the samples of the epoch. A
            summary with ``conv`` in its name first applies a random 3 x 3 convolution with 96 channels to the samples.
        distance: The distance :math:`D`, the mean of absolute or squared differences.
        seed: The seed of the random convolution.
    """

    weight: float = 1000.0
    summary: Summary = "mean"
    distance: Distance = "l2"
    seed: int = 0
    name = "epochs"

    def __post_init__(self) -> None:
        not_negative("the weight of the order-invariant prior", self.weight)
        for setting, value, valid in (("summary", self.summary, SUMMARIES), ("distance", self.distance, DISTANCES)):
            if value not in valid:
                raise UnknownName(f"{setting} of an epoch", value, valid)

    def applies(self, data: DataSpec) -> bool:
        """Return whether the prior can be used. If it convolves samples, the samples must be images."""
        return self.weight > 0 and (data.is_image or not self.summary.startswith("conv"))

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Summarise the samples of each epoch, and return the mean distance of these summaries times the weight.

        Args:
            inputs: Normalised inputs, (epochs, samples, ...).
            data: Not used.
        """
        return self.weight * self.value(inputs)

    def value(self, inputs: Tensor) -> Tensor:
        """Return the mean distance between the summaries of the epochs, without the weight of the term.

        The mean is over all pairs of epochs, including the pairs of an epoch with itself.

        Args:
            inputs: Normalised inputs, (epochs, samples, ...).
        """
        features = self._convolved(inputs) if self.summary.startswith("conv") else inputs
        summaries = features.mean(1) if self.summary.endswith("mean") else features.amax(1)
        differences = summaries.unsqueeze(0) - summaries.unsqueeze(1)
        return differences.square().mean() if self.distance == "l2" else differences.abs().mean()

    def _convolved(self, inputs: Tensor) -> Tensor:
        kernel = _kernel(self.seed, inputs.shape[2]).to(inputs)
        features: Tensor = F.conv2d(inputs.flatten(0, 1), kernel, padding=1)
        return features.reshape(*inputs.shape[:2], *features.shape[1:])

    def like(self, reference: EpochOrderInvariant, data: DataSpec, *, epochs: int, samples: int) -> EpochOrderInvariant:
        """Return this prior with a weight that gives it the value of ``reference`` on random samples (section 5.4).

        Args:
            reference: The prior whose value is matched.
            data: The kind of data.
            epochs: The number of epochs.
            samples: The number of samples in each epoch.
        """
        start = torch.randn(epochs, samples, *data.shape, generator=generator(self.seed, "start"))
        return replace(self, weight=reference.weight * float(reference.value(start) / self.value(start)))


@dataclass(frozen=True)
class EpochAgreement:
    r"""The squared distance between the copies of a sample in all epochs and the mean of these copies.

    .. math:: \lambda\,\frac{1}{E N}\sum_{e, i} \lVert \tilde x_{e,i} - \tfrac1E \sum_{e'} \tilde x_{e',i}\rVert^2

    Here :math:`\tilde x_{e,i}` is the copy of sample :math:`i` in epoch :math:`e`, for :math:`E` epochs and :math:`N`
    samples, and :math:`\lambda` is the weight. This prior is stronger than :class:`EpochOrderInvariant`, which compares
    only summaries of epochs. ``EpochAgreement`` requires that the copy with the index :math:`i` is the same sample in
    every epoch, as in ``FullSimulation(per_epoch=True, new_orders=True)``, which shuffles only the simulated batches.
    An infinite weight would force all copies of a sample to be equal. With a weight of zero, the copies would be
    independent. With a weight in between, the copies may differ a little. This is useful because the simulated order of
    the samples differs from the client's unknown order.

    Args:
        weight: The weight of the term.
    """

    weight: float = 0.05
    name = "agreement"

    def __post_init__(self) -> None:
        not_negative("the weight of the epochs' agreement", self.weight)

    def applies(self, data: DataSpec) -> bool:
        """Return true, because this prior can be used for all kinds of data."""
        return self.weight > 0

    def __call__(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Return the mean squared distance of the copies of a sample from their mean, times the weight.

        Args:
            inputs: Normalised inputs, (epochs, samples, ...).
            data: Not used.
        """
        return self.weight * (inputs - inputs.mean(0)).square().flatten(2).sum(2).mean()


@lru_cache
def _kernel(seed: int, channels: int) -> Tensor:
    """Return the kernel of the random convolution.

    All problems use the same kernel. It is drawn in another thread, in which ``vmap`` is not active. Within ``vmap``,
    each problem would draw a different kernel.
    """

    def draw() -> Tensor:
        kernel = torch.randn(96, channels, 3, 3, generator=generator(seed, "convolution"))
        return kernel / float((9 * channels) ** 0.5)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(draw).result()


def _has_neighbours(data: DataSpec) -> bool:
    if data.time_axis is not None:
        return data.shape[data.time_axis] > 1
    return data.is_image and min(data.shape[1:]) > 1


def _steps(inputs: Tensor, data: DataSpec) -> Tensor:
    """Return the differences of consecutive values of each series, of shape (epochs, samples, ...)."""
    assert data.time_axis is not None
    return inputs.diff(dim=data.time_axis - len(data.shape))
