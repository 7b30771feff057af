r"""How much each layer counts in the distance between updates.

=============  ==========================================================================================
``Sloped``     AGIC, equations 7 and 8: a slope over the convolutions, corrected for the zeros of ReLU
``ByKind``     AWA, equations 24 to 30: a slope over each kind of layer, and more for layers that are far off
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

#: How much each parameter counts.
Weighting = Mapping[str, float | Tensor]
#: ``weights(predicted, observed)``, at one step.
Weights = Callable[[Params, Params], Weighting]

Shape = Literal["linear", "exponential", "logarithmic"]
Norms = Literal["one", "layer", "none"]


Made = TypeVar("Made")


def once(make: Callable[..., Made]) -> Callable[..., Made]:
    """Make it once for as long as it is asked for with the same objects: an observation stays, step after step."""
    last: list[tuple[tuple[object, ...], Made]] = []

    def made(*given: object) -> Made:
        if not last or any(one is not other for one, other in zip(last[0][0], given, strict=True)):
            last[:] = [(given, make(*given))]
        return last[0][1]

    return made


class LayerWeights(Protocol):
    """A rule that weights layers."""

    def begin(self, layers: Sequence[Layer]) -> Weights:
        """Get ready for a model with these layers."""
        ...


@dataclass(frozen=True)
class Sloped:
    r"""Convolution :math:`i` of :math:`N` counts :math:`\alpha_i = l_i / (1 - p_i)` (AGIC, section IV-C).

    :math:`l` runs from 1 at the first to ``beta`` at the last convolution: ``"linear"`` (equation 7),
    ``"exponential"`` :math:`a e^x + b` or ``"logarithmic"`` :math:`a \ln x + b` (table I); ``beta`` below 1 falls,
    1 weights all alike. :math:`p_i` is the share of zeros in the layer's observed update, with ``zeros`` only: what
    ReLU has silenced is easily matched. Every other layer counts the mean of :math:`l` (equation 8).

    The paper is silent on normalisations, and they decide much: ``norms`` lets them count 1 (``"one"``), as much as
    the convolution before them (``"layer"``), or not at all (``"none"``). In a model without convolutions the slope
    runs over its linear layers.
    """

    beta: float = 50.0
    shape: Shape = "linear"
    zeros: bool = True
    norms: Norms = "one"

    def __post_init__(self) -> None:
        positive("beta", self.beta)
        for what, value, valid in (
            ("shape", self.shape, get_args(Shape)),
            ("weight of norms", self.norms, get_args(Norms)),
        ):
            if value not in valid:
                raise UnknownName(f"{what} of layer weights", value, valid)

    def begin(self, layers: Sequence[Layer]) -> Weights:
        """Get ready for a model with these layers."""
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
        """The slope's height at one of so many layers."""
        if number == 1:
            return self.beta
        if self.shape == "linear":
            share = (place - 1) / (number - 1)
        elif self.shape == "exponential":  # e^x over its value at the end, which may not fit into a number
            share = (math.exp(place - number) - math.exp(1 - number)) / (1 - math.exp(1 - number))
        else:
            share = math.log(place) / math.log(number)
        return 1 + (self.beta - 1) * share


@dataclass(frozen=True)
class ByKind:
    r"""Weights that rise from 1 to a value of their own over the layers of each kind (AWA, equation 24), then

    .. math:: q^{(l)} = q_{en} \quad\text{for}\quad l \in P_{mean} \cap P_{var} \qquad (27, 30),

    the layers that are among the ``share_mean`` of all with the largest relative error of the mean and among the
    ``share_var`` with that of the variance (equations 25 and 26), as they are at this step. Layers of other kinds
    count as linear ones do. With ``enhanced`` ``None`` no layer is enhanced.
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
                raise InvalidInput(f"{name} is a share of the layers, in [0, 1], not {getattr(self, name)!r}")

    def begin(self, layers: Sequence[Layer]) -> Weights:
        """Get ready for a model with these layers."""
        kinds = ["linear" if layer.kind == "other" else layer.kind for layer in layers]
        totals, seen, slope = {kind: kinds.count(kind) for kind in kinds}, dict.fromkeys(kinds, 0), []
        for kind in kinds:
            last, number, place = getattr(self, kind), totals[kind], seen[kind]
            slope.append(last if number == 1 else 1 + (last - 1) * place / (number - 1))
            seen[kind] += 1
        largest = [math.ceil(share * len(layers)) for share in (self.share_mean, self.share_var)]
        wanted = once(lambda observed: _statistics(layers, observed))

        def weights(predicted: Params, observed: Params) -> Weighting:
            values: Sequence[float | Tensor] = slope
            if self.enhanced is not None and min(largest) > 0:
                theirs = wanted(observed)
                tiny = torch.finfo(theirs.dtype).tiny
                off = (_statistics(layers, predicted) - theirs).abs() / theirs.abs().clamp_min(tiny)
                chosen = [_among_largest(errors, number) for errors, number in zip(off, largest, strict=True)]
                values = list(torch.where(chosen[0] & chosen[1], self.enhanced, off.new_tensor(slope)))
            return {name: value for layer, value in zip(layers, values, strict=True) for name in layer.parameters}

        return weights


def _statistics(layers: Sequence[Layer], tree: Params) -> Tensor:
    """The mean and the variance of each layer's values, two rows: by sums and squares, which make no copy of them."""
    sums, squares, sizes = [], [], []
    for layer in layers:
        values = [tree[name].detach().flatten() for name in layer.parameters]
        sums.append(torch.stack([value.sum() for value in values]).sum())
        squares.append(torch.stack([value.dot(value) for value in values]).sum())
        sizes.append(sum(len(value) for value in values))
    means, squared = (torch.stack(values) / sums[0].new_tensor(sizes) for values in (sums, squares))
    return torch.stack([means, (squared - means**2).clamp_min(0)])


def _among_largest(errors: Tensor, number: int) -> Tensor:
    """Which of the values are among the so many largest."""
    return errors.argsort(descending=True, stable=True).argsort() < number
