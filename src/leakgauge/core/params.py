"""Arithmetic on ``{name: tensor}``, the form in which weights, gradients and updates travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]


def parameters_of(model: nn.Module) -> Params:
    """The model's parameters as detached copies, tied ones once."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def buffers_of(model: nn.Module) -> Params:
    """The model's buffers (batch-norm statistics and the like) as detached copies."""
    return {name: value.detach().clone() for name, value in model.named_buffers()}


def elementwise(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Params:
    """Apply ``function`` to the tensors of the same name."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """``a - b``."""
    return elementwise(torch.sub, a, b)


def scale(a: Mapping[str, Tensor], factor: float) -> Params:
    """``factor * a``."""
    return elementwise(lambda value: value * factor, a)


def weighted_mean(trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """The mean of several trees; integer tensors (step counters) are taken from the first."""
    total = float(sum(weights))

    def combine(*values: Tensor) -> Tensor:
        if not values[0].is_floating_point():
            return values[0].clone()
        mean = torch.zeros_like(values[0])
        for value, weight in zip(values, weights, strict=True):
            mean.add_(value, alpha=weight / total)
        return mean

    return elementwise(combine, *trees)


def flatten(a: Mapping[str, Tensor]) -> Tensor:
    """All values as one vector, in the order of the names."""
    return torch.cat([value.reshape(-1) for value in a.values()])


def detach(a: Mapping[str, Tensor]) -> Params:
    """The same values, cut from the graph that made them."""
    return elementwise(torch.Tensor.detach, a)


def to(a: Mapping[str, Tensor], device: torch.device | str) -> Params:
    """The same values on another device."""
    return elementwise(lambda value: value.to(device), a)
