r"""How far a predicted update is from the observed one.

With :math:`u` the prediction and :math:`v` the observation, over all layers:

==========  =========================================================================  ===========
``Cosine``  :math:`1 - \langle u, v\rangle / (\lVert u\rVert\,\lVert v\rVert)`          scale-free
``L2``      :math:`\sum_l w_l \lVert u_l - v_l\rVert^2`, with :math:`w_l = d^{\,l}`             needs scale
==========  =========================================================================  ===========

A scale-free objective needs no learning rate: the direction of the update is enough. ``LayerWeighted`` is either of
them with a rule of :mod:`leakgauge.attacks.inversion.layer_weights` that weights the layers of the model at hand; ``Adapted``
is any with allowance for what a known defence did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from leakgauge.attacks.inversion.layer_weights import LayerWeights, Weighting, once
from leakgauge.attacks.inversion.layers import layers_of_model
from leakgauge.core.checks import positive
from leakgauge.core.params import Params

#: ``distance(predicted, observed)``, a scalar.
Distance = Callable[..., Tensor]


class Objective(Protocol):
    """A distance between updates, for models of any kind."""

    @property
    def scale_free(self) -> bool:
        """Whether only the directions of the updates matter."""
        ...

    def begin(self, model: nn.Module) -> Distance:
        """Get ready for the updates of one model."""
        ...


class AnyModel(ABC):
    """An objective that does not ask what the layers of a model are: write ``__call__`` and ``scale_free``."""

    def begin(self, model: nn.Module) -> Distance:
        """Itself."""
        return self.__call__

    @abstractmethod
    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """The distance, a scalar."""


@dataclass(frozen=True)
class Cosine(AnyModel):
    """One minus the cosine of the angle between the updates (Geiping et al. 2020, equation 4)."""

    scale_free: ClassVar[bool] = True

    def begin(self, model: nn.Module) -> Distance:
        """The distance, which takes the length of the same observation once only."""
        length = once(lambda observed, weights: _product(observed, observed, weights))

        def distance(predicted: Params, observed: Params, weights: Weighting | None = None) -> Tensor:
            product = _product(predicted, observed, weights, observed)
            squares = _product(predicted, predicted, weights, observed), length(observed, weights)
            # A zero update has no direction: the smallest number keeps its gradient finite.
            tiny = torch.finfo(product.dtype).tiny
            return 1 - product / (squares[0].clamp_min(tiny).sqrt() * squares[1].clamp_min(tiny).sqrt())

        return distance

    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """The distance, between 0 and 2."""
        return self.begin(nn.Identity())(predicted, observed)


@dataclass(frozen=True)
class L2(AnyModel):
    """Squared Euclidean distance between the updates (Zhu et al. 2019).

    ``decay`` weights layer l = 0, 1, ... by ``decay ** l`` (DLF's code: 1/e); a layer's kernel and bias share
    their weight. ``relative`` divides by the squared norm of the observed update in the same weights: 1 for an
    update of zero, whatever the size of the network and of its gradients.
    """

    decay: float = 1.0
    relative: bool = False
    scale_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("decay", self.decay)

    def __call__(self, predicted: Params, observed: Params, weights: Weighting | None = None) -> Tensor:
        """The distance, not below 0."""
        given = weights or dict.fromkeys(observed, 1.0)
        weights = {name: self.decay**layer * given[name] for name, layer in layers_of(observed).items()}
        off = {name: predicted[name] - observed[name] for name in observed}
        distance = _product(off, off, weights)
        if not self.relative:
            return distance
        return distance / _product(observed, observed, weights).clamp_min(torch.finfo(distance.dtype).tiny)


@dataclass(frozen=True)
class LayerWeighted:
    r"""An objective whose sums over all parameters take each layer times its weight.

    With :class:`Cosine` this is AGIC's equation 6, with :class:`L2` AWA's equation 23.
    """

    base: Cosine | L2
    weights: LayerWeights

    @property
    def scale_free(self) -> bool:
        """As the objective that is weighted."""
        return self.base.scale_free

    def begin(self, model: nn.Module) -> Distance:
        """Get ready for the updates of one model, whose layers the weights are for."""
        trained = [name for name, value in model.named_parameters() if value.requires_grad]
        weights = self.weights.begin(layers_of_model(model, trained))
        base = self.base.begin(model)
        # frozen parameters have no weight, which is no matter
        complete = once(lambda given, observed: {name: given.get(name, 1.0) for name in observed})

        def distance(predicted: Params, observed: Params) -> Tensor:
            return base(predicted, observed, complete(weights(predicted, observed), observed))

        return distance


@dataclass(frozen=True)
class Adapted:
    """An objective that allows for what a known defence did to the update.

    ``masked`` compares only where the observed update is not zero: the rest was left out. ``free_scale`` scales the
    prediction to fit best: clipping hid its length. ``share`` is how much of the update was left by pruning.
    """

    base: Objective
    masked: bool = False
    free_scale: bool = False
    share: float = 1.0

    def __post_init__(self) -> None:
        positive("the share of the update that is left", self.share)

    @property
    def scale_free(self) -> bool:
        """As the objective that is adapted."""
        return self.base.scale_free

    def begin(self, model: nn.Module) -> Distance:
        """Get ready for the updates of one model."""
        base = self.base.begin(model)

        def distance(predicted: Params, observed: Params) -> Tensor:
            if self.masked:
                predicted = {name: predicted[name] * (observed[name] != 0) for name in observed}
            factor: float | Tensor = self.share
            if self.free_scale:
                length = _product(predicted, predicted, None, observed)
                factor = _product(predicted, observed, None, observed) / length.clamp_min(
                    torch.finfo(length.dtype).tiny
                )
            return base({name: factor * predicted[name] for name in observed}, observed)

        return distance


def _product(one: Params, other: Params, weights: Weighting | None, names: Iterable[str] | None = None) -> Tensor:
    """The weighted inner product of two updates."""
    sums = {name: (one[name] * other[name]).sum() for name in names or one}
    return torch.stack([value if weights is None else weights[name] * value for name, value in sums.items()]).sum()


def layers_of(tree: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of the layer that each parameter belongs to, counted from the input, by their names."""
    order: dict[str, int] = {}
    return {name: order.setdefault(name.rpartition(".")[0], len(order)) for name in tree}
