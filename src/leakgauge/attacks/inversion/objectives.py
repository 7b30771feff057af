r"""Distances between a predicted and an observed update.

With :math:`u` the predicted update, :math:`v` the observed update, :math:`l` the index of a layer and :math:`d` the
ratio of the weights of consecutive layers, the distances are:

==========  =========================================================================  ===========
``Cosine``  :math:`1 - \langle u, v\rangle / (\lVert u\rVert\,\lVert v\rVert)`          scale-free
``L2``      :math:`\sum_l w_l \lVert u_l - v_l\rVert^2`, with :math:`w_l = d^{\,l}`             needs scale
==========  =========================================================================  ===========

A scale-free objective compares only the directions of the updates. The attacker then does not need the client's
learning rate. ``LayerWeighted`` is one of these two objectives with the layer weights of
:mod:`leakgauge.attacks.inversion.layer_weights`. ``Logarithmic`` is the logarithm of an objective, which balances the
match with the priors. ``Adapted`` is an objective that takes a known defence into account.
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

#: A function ``distance(predicted, observed)``, which returns a scalar.
Distance = Callable[..., Tensor]


class Objective(Protocol):
    """A distance between a predicted and an observed update, which an attack minimises."""

    @property
    def scale_free(self) -> bool:
        """Whether the distance depends only on the directions of the updates."""
        ...

    def begin(self, model: nn.Module) -> Distance:
        """Return the distance function for the updates of one model.

        Args:
            model: The client's model, which some objectives read to weight its layers.
        """
        ...


class AnyModel(ABC):
    """An objective that does not depend on the model.

    A subclass defines ``__call__`` and ``scale_free``.
    """

    def begin(self, model: nn.Module) -> Distance:
        """Return the distance function, which is the same for all models.

        Args:
            model: Not used.
        """
        return self.__call__

    @abstractmethod
    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """Return the distance as a scalar.

        Args:
            predicted: The predicted update.
            observed: The observed update.
        """


@dataclass(frozen=True)
class Cosine(AnyModel):
    """One minus the cosine of the angle between the updates (Geiping et al. 2020, equation 4)."""

    scale_free: ClassVar[bool] = True

    def begin(self, model: nn.Module) -> Distance:
        """Return a distance function that computes the length of the observed update only once.

        Args:
            model: Not used.
        """
        length = once(lambda observed, weights: _product(observed, observed, weights))

        def distance(predicted: Params, observed: Params, weights: Weighting | None = None) -> Tensor:
            product = _product(predicted, observed, weights, observed)
            squares = _product(predicted, predicted, weights, observed), length(observed, weights)
            # A zero update has no direction. The smallest number keeps the gradient finite.
            tiny = torch.finfo(product.dtype).tiny
            return 1 - product / (squares[0].clamp_min(tiny).sqrt() * squares[1].clamp_min(tiny).sqrt())

        return distance

    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """Return the distance, which lies between 0 and 2.

        Args:
            predicted: The predicted update.
            observed: The observed update.
        """
        return self.begin(nn.Identity())(predicted, observed)


@dataclass(frozen=True)
class L2(AnyModel):
    """The squared Euclidean distance between the updates (Zhu et al. 2019).

    Args:
        decay: The ratio of the weights of consecutive layers. Layer l = 0, 1, ... has the weight ``decay ** l`` (DLF's
            code uses 1/e). The kernel and the bias of a layer have the same weight.
        relative: Whether the distance is divided by the squared norm of the observed update, with the same layer
            weights. A predicted update of zero then has a distance of 1, whatever the size of the network and of its
            gradients.
    """

    decay: float = 1.0
    relative: bool = False
    scale_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("decay", self.decay)

    def __call__(self, predicted: Params, observed: Params, weights: Weighting | None = None) -> Tensor:
        """Return the distance, which is at least 0.

        Args:
            predicted: The predicted update.
            observed: The observed update.
            weights: The weight of each parameter. By default, all parameters have the same weight.
        """
        given = weights or dict.fromkeys(observed, 1.0)
        weights = {name: self.decay**layer * given[name] for name, layer in layers_of(observed).items()}
        difference = {name: predicted[name] - observed[name] for name in observed}
        distance = _product(difference, difference, weights)
        if not self.relative:
            return distance
        return distance / _product(observed, observed, weights).clamp_min(torch.finfo(distance.dtype).tiny)


@dataclass(frozen=True)
class LayerWeighted:
    """An objective with a weight for each layer.

    With :class:`Cosine` this is equation 6 of AGIC. With :class:`L2` this is equation 23 of AWA.

    Args:
        base: The objective that is weighted.
        weights: The rule that assigns a weight to each layer.
    """

    base: Cosine | L2
    weights: LayerWeights

    @property
    def scale_free(self) -> bool:
        """Whether the distance depends only on the directions of the updates. The answer is that of ``base``."""
        return self.base.scale_free

    def begin(self, model: nn.Module) -> Distance:
        """Return the distance function for the updates of one model.

        Args:
            model: The model. Its layers are weighted.
        """
        trained = [name for name, value in model.named_parameters() if value.requires_grad]
        weights = self.weights.begin(layers_of_model(model, trained))
        base = self.base.begin(model)
        # The rule gives no weight to frozen parameters. Any number will do, because it has no effect.
        complete = once(lambda given, observed: {name: given.get(name, 1.0) for name in observed})

        def distance(predicted: Params, observed: Params) -> Tensor:
            return base(predicted, observed, complete(weights(predicted, observed), observed))

        return distance


@dataclass(frozen=True)
class Logarithmic:
    r"""The objective :math:`\log(1 + d / f)`, computed from another objective :math:`d`.

    The gradient of this objective is the gradient of :math:`d` times :math:`1 / (d + f)`. The match of the updates
    therefore has little weight as long as :math:`d` stays large, for example because of noise or an unknown sample
    order. The priors then dominate. As :math:`d` gets small, the match outweighs the priors. Up to a factor, this
    objective is the negative log-likelihood of an update with Gaussian errors. The unknown size of the errors is set to
    its most likely value.

    Args:
        base: The objective :math:`d`.
        floor: The distance :math:`f`. Far below this distance, the result is proportional to :math:`d`.
    """

    base: Objective
    floor: float = 1e-4

    def __post_init__(self) -> None:
        positive("the floor of a logarithm", self.floor)

    @property
    def scale_free(self) -> bool:
        """Whether the distance depends only on the directions of the updates. The answer is that of ``base``."""
        return self.base.scale_free

    def begin(self, model: nn.Module) -> Distance:
        """Return the distance function for the updates of one model.

        Args:
            model: The client's model, which is passed to ``base``.
        """
        base = self.base.begin(model)
        return lambda predicted, observed: torch.log1p(base(predicted, observed) / self.floor)


@dataclass(frozen=True)
class Adapted:
    """An objective that takes the effect of a known defence on the update into account.

    Args:
        base: The objective that is adapted.
        masked: Whether entries with an observed update of zero are ignored, because pruning left them out.
        free_scale: Whether the prediction is multiplied by the factor that fits the observed update best, because
            clipping hides the length of the update.
        share: The average share of the update's entries that pruning keeps. The prediction is multiplied by this share,
            unless ``free_scale`` is set.
    """

    base: Objective
    masked: bool = False
    free_scale: bool = False
    share: float = 1.0

    def __post_init__(self) -> None:
        positive("the share of the update that is left", self.share)

    @property
    def scale_free(self) -> bool:
        """Whether the distance depends only on the directions of the updates. The answer is that of ``base``."""
        return self.base.scale_free

    def begin(self, model: nn.Module) -> Distance:
        """Return the distance function for the updates of one model.

        Args:
            model: The client's model, which is passed to ``base``.
        """
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
    """Return the inner product of two updates, with a weight for each parameter."""
    sums = {name: (one[name] * other[name]).sum() for name in names or one}
    return torch.stack([value if weights is None else weights[name] * value for name, value in sums.items()]).sum()


def layers_of(tree: Mapping[str, Tensor]) -> dict[str, int]:
    """Return a mapping from the name of each parameter to the index of its layer, counted from the input."""
    order: dict[str, int] = {}
    return {name: order.setdefault(name.rpartition(".")[0], len(order)) for name in tree}
