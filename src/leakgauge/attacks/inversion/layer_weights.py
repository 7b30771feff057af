r"""Rules that weight the layers in the distance between the predicted and the observed update.

=============  ==========================================================================================
``Sloped``     weights that change steadily over the convolutions (AGIC, equations 7 and 8)
``ByKind``     weights that change steadily over the layers of each kind (AWA, equations 24 to 30)
=============  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from leakgauge.attacks.inversion.layers import Layer
from leakgauge.core.checks import positive
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.params import Params

#: The weight of each parameter.
Weighting = Mapping[str, float | Tensor]
#: A function ``weights(predicted, observed)``, which returns the weights at one step.
Weights = Callable[[Params, Params], Weighting]

Shape = Literal["linear", "exponential", "logarithmic"]
Norms = Literal["one", "layer", "none"]


Made = TypeVar("Made")


def once(make: Callable[..., Made]) -> Callable[..., Made]:
    """Wrap a function such that it caches its last result, and returns this result again for the same arguments.

    Arguments are the same if they are identical objects. The observed update is the same object in every attack step,
    so values that depend only on the observed update are computed only once.
    """
    last: list[tuple[tuple[object, ...], Made]] = []

    def made(*given: object) -> Made:
        if not last or any(one is not other for one, other in zip(last[0][0], given, strict=True)):
            last[:] = [(given, make(*given))]
        return last[0][1]

    return made


class LayerWeights(Protocol):
    """A rule that assigns a weight to each layer."""

    def begin(self, layers: Sequence[Layer]) -> Weights:
        """Return a function that computes the weights of these layers.

        Args:
            layers: The layers, from the input to the output.
        """
        ...


@dataclass(frozen=True)
class Sloped:
    r"""Weights that change steadily from the first to the last convolution (AGIC, section IV-C).

    The weight of convolution :math:`i` is :math:`\alpha_i = l_i / (1 - p_i)`. The value :math:`l_i` goes from 1 at the
    first convolution to ``beta`` at the last convolution. :math:`p_i` is the share of zeros in the layer's observed
    update. Every other layer has the mean of all :math:`l_i` as its weight (equation 8). In a model without
    convolutions, :math:`l_i` goes over the linear layers instead.

    Args:
        beta: The weight of the last convolution. Below 1, the weights fall from the first to the last convolution. With
            1, all layers have the same weight before the correction by :math:`p_i`.
        shape: The curve of :math:`l_i` over the layers. It is ``"linear"`` (equation 7), ``"exponential"`` :math:`a e^x
            + b` or ``"logarithmic"`` :math:`a \ln x + b` (table I).
        zeros: Whether weights are divided by :math:`1 - p_i`. Entries that ReLU has set to zero are easy to match, so
            layers with many such entries need more weight.
        norms: The weight of normalisation layers. ``"one"`` is 1, ``"layer"`` is the weight of the convolution before
            the layer, and ``"none"`` is 0. This weight has a large effect, but the paper does not define it.
    """

    beta: float = 50.0
    shape: Shape = "linear"
    zeros: bool = True
    norms: Norms = "one"

    def __post_init__(self) -> None:
        positive("beta", self.beta)
        for setting, value, valid in (
            ("shape", self.shape, get_args(Shape)),
            ("weight of norms", self.norms, get_args(Norms)),
        ):
            if value not in valid:
                raise UnknownName(f"{setting} of layer weights", value, valid)

    def begin(self, layers: Sequence[Layer]) -> Weights:
        """Return a function that computes the weights of these layers.

        Args:
            layers: The layers, from the input to the output.
        """
        along = "convolution" if any(layer.kind == "convolution" for layer in layers) else "linear"
        number = sum(layer.kind == along for layer in layers)
        slope = [self._at(place + 1, number) for place in range(number)]
        mean = sum(slope) / number if number else 1.0
        fixed: dict[str, float] = {}
        sloped, passed = [], 0
        for layer in layers:
            if layer.kind == along:
                value, passed = slope[passed], passed + 1
                sloped.append(layer)
            elif layer.kind == "normalisation":
                value = {"one": 1.0, "layer": slope[passed - 1] if passed else mean, "none": 0.0}[self.norms]
            else:
                value = mean
            fixed |= dict.fromkeys(layer.parameters, value)

        @once
        def corrected(observed: Params) -> Weighting:
            weights: dict[str, float | Tensor] = dict(fixed)
            for layer in sloped:
                values = [observed[name] for name in layer.parameters]
                size = sum(value.numel() for value in values)
                present = torch.stack([(value != 0).sum() for value in values]).sum().clamp_min(1)
                weights |= {name: fixed[name] * size / present for name in layer.parameters}
            return weights

        uncorrected = not self.zeros or along != "convolution"
        return lambda predicted, observed: fixed if uncorrected else corrected(observed)

    def _at(self, place: int, number: int) -> float:
        """Return the value ``l_i`` of a layer, which is the weight of a layer before the correction for zeros.

        Args:
            place: The position of the layer, counted from 1.
            number: The number of layers over which the weights change.
        """
        if number == 1:
            return self.beta
        if self.shape == "linear":
            share = (place - 1) / (number - 1)
        elif self.shape == "exponential":  # relative to the value at the end, because e^x itself may overflow
            share = (math.exp(place - number) - math.exp(1 - number)) / (1 - math.exp(1 - number))
        else:
            share = math.log(place) / math.log(number)
        return 1 + (self.beta - 1) * share


@dataclass(frozen=True)
class ByKind:
    r"""Weights that change evenly from 1 to a final value over the layers of one kind (AWA, equation 24).

    The kinds are convolutions, normalisations and linear layers. Layers of other kinds have the weights of linear
    layers. At each attack step, the mean and the variance of each layer's predicted update are compared with those of
    the observed update (equations 25 and 26). :math:`P_{mean}` are the layers with the largest relative errors of the
    mean. :math:`P_{var}` are the layers with the largest relative errors of the variance. Layers in both sets get the
    enhanced weight :math:`q_{en}` instead:

    .. math:: q^{(l)} = q_{en} \quad\text{for}\quad l \in P_{mean} \cap P_{var} \qquad (27, 30)

    Args:
        convolution: The weight of the last convolution.
        normalisation: The weight of the last normalisation layer.
        linear: The weight of the last linear layer.
        enhanced: The enhanced weight. By default, no layer is enhanced.
        share_mean: The share of all layers that belong to :math:`P_{mean}`.
        share_var: The share of all layers that belong to :math:`P_{var}`.
    """

    convolution: float = 1.0
    normalisation: float = 1.0
    linear: float = 1.0
    enhanced: float | None = None
    share_mean: float = 0.0
    share_var: float = 0.0

    def __post_init__(self) -> None:
        for name in ("convolution", "normalisation", "linear"):
            positive(f"the weight of the last {name} layer", getattr(self, name))
        if self.enhanced is not None:
            positive("the enhanced weight", self.enhanced)
        for name in ("share_mean", "share_var"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"{name} must be a share of the layers in [0, 1], not {getattr(self, name)!r}")

    def begin(self, layers: Sequence[Layer]) -> Weights:
        """Return a function that computes the weights of these layers.

        Args:
            layers: The layers, from the input to the output.
        """
        kinds = ["linear" if layer.kind == "other" else layer.kind for layer in layers]
        totals, seen, slope = {kind: kinds.count(kind) for kind in kinds}, dict.fromkeys(kinds, 0), []
        for kind in kinds:
            last, number, place = getattr(self, kind), totals[kind], seen[kind]
            slope.append(last if number == 1 else 1 + (last - 1) * place / (number - 1))
            seen[kind] += 1
        largest = [math.ceil(share * len(layers)) for share in (self.share_mean, self.share_var)]
        observed_statistics = once(lambda observed: _statistics(layers, observed))

        def weights(predicted: Params, observed: Params) -> Weighting:
            values: Sequence[float | Tensor] = slope
            if self.enhanced is not None and min(largest) > 0:
                reference = observed_statistics(observed)
                tiny = torch.finfo(reference.dtype).tiny
                errors = (_statistics(layers, predicted) - reference).abs() / reference.abs().clamp_min(tiny)
                chosen = [_among_largest(row, number) for row, number in zip(errors, largest, strict=True)]
                values = list(torch.where(chosen[0] & chosen[1], self.enhanced, errors.new_tensor(slope)))
            return {name: value for layer, value in zip(layers, values, strict=True) for name in layer.parameters}

        return weights


def _statistics(layers: Sequence[Layer], tree: Params) -> Tensor:
    """Return the mean and the variance of each layer's values in an update, (2, layers).

    They are computed from sums and sums of squares, which need no copy of the values.
    """
    sums, squares, sizes = [], [], []
    for layer in layers:
        values = [tree[name].detach().flatten() for name in layer.parameters]
        sums.append(torch.stack([value.sum() for value in values]).sum())
        squares.append(torch.stack([value.dot(value) for value in values]).sum())
        sizes.append(sum(len(value) for value in values))
    means, squared = (torch.stack(values) / sums[0].new_tensor(sizes) for values in (sums, squares))
    return torch.stack([means, (squared - means**2).clamp_min(0)])


def _among_largest(errors: Tensor, number: int) -> Tensor:
    """Return a mask of the ``number`` largest values."""
    return errors.argsort(descending=True, stable=True).argsort() < number
