r"""How far a predicted update is from the observed one.

With :math:`u` the prediction and :math:`v` the observation, over all layers:

==========  =========================================================================  ===========
``Cosine``  :math:`1 - \langle u, v\rangle / (\lVert u\rVert\,\lVert v\rVert)`          scale-free
``L2``      :math:`\sum_l w_l \lVert u_l - v_l\rVert^2`, with :math:`w_l = d^{\,l}`             needs scale
==========  =========================================================================  ===========

A scale-free objective needs no learning rate: the direction of the update is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from leakscope.inversion.checks import positive
from leakscope.params import Params


class Objective(Protocol):
    """A distance between updates."""

    scale_free: ClassVar[bool]

    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """The distance, a scalar."""
        ...


@dataclass(frozen=True)
class Cosine:
    """One minus the cosine of the angle between the updates (Geiping et al. 2020, equation 4)."""

    scale_free: ClassVar[bool] = True

    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """The distance, between 0 and 2."""
        pairs = [(predicted[name], observed[name]) for name in observed]
        product = torch.stack([(u * v).sum() for u, v in pairs]).sum()
        norms = [torch.stack([x.square().sum() for x in side]).sum() for side in zip(*pairs, strict=True)]
        # A zero update has no direction: the smallest number keeps its gradient finite.
        tiny = torch.finfo(product.dtype).tiny
        return 1 - product / (norms[0].clamp_min(tiny).sqrt() * norms[1].clamp_min(tiny).sqrt())


@dataclass(frozen=True)
class L2:
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

    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """The distance, not below 0."""
        layers = layers_of(observed)
        distance = self._total({name: predicted[name] - observed[name] for name in observed}, layers)
        if not self.relative:
            return distance
        return distance / self._total(observed, layers).clamp_min(torch.finfo(distance.dtype).tiny)

    def _total(self, tree: Params, layers: dict[str, int]) -> Tensor:
        return torch.stack([self.decay ** layers[name] * value.square().sum() for name, value in tree.items()]).sum()


def layers_of(tree: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of the layer that each parameter belongs to, counted from the input, by their names."""
    order: dict[str, int] = {}
    return {name: order.setdefault(name.rpartition(".")[0], len(order)) for name in tree}
