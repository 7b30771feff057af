r"""How far a predicted update is from the observed one.

With :math:`u` the prediction and :math:`v` the observation, over all layers:

==========  =========================================================================  ===========
``Cosine``  :math:`1 - \langle u, v\rangle / (\lVert u\rVert\,\lVert v\rVert)`          scale-free
``L2``      :math:`\sum_l \lVert u_l - v_l\rVert^2`                                     needs scale
==========  =========================================================================  ===========

A scale-free objective needs no learning rate: the direction of the update is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

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
    """Squared Euclidean distance between the updates (Zhu et al. 2019)."""

    scale_free: ClassVar[bool] = False

    def __call__(self, predicted: Params, observed: Params) -> Tensor:
        """The distance, not below 0."""
        return torch.stack([(predicted[name] - observed[name]).square().sum() for name in observed]).sum()
