"""Arithmetic on dictionaries ``{name: tensor}``, which hold weights, gradients or updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]


def inside(path: str, name: str) -> str:
    """Return the full name of a parameter of the module at a path in the model. The path of the model itself is empty.

    >>> inside("body.head", "weight"), inside("", "weight")
    ('body.head.weight', 'weight')

    Args:
        path: The path of the module.
        name: The name of the parameter in the module.
    """
    return f"{path}.{name}" if path else name


def parameters_of(model: nn.Module) -> Params:
    """Return detached copies of the model's parameters. Tied parameters appear once."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def buffers_of(model: nn.Module) -> Params:
    """Return detached copies of the model's buffers, such as batch-norm statistics."""
    return {name: value.detach().clone() for name, value in model.named_buffers()}


def elementwise(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Params:
    """Apply a function to tensors of the same name in several dictionaries, and return a dictionary of the results.

    Args:
        function: The function, which gets one tensor from each dictionary.
        trees: The dictionaries, all with the same names.
    """
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """Return ``a - b``, tensor by tensor."""
    return elementwise(torch.sub, a, b)


def scale(a: Mapping[str, Tensor], factor: float) -> Params:
    """Return ``factor * a``, tensor by tensor."""
    return elementwise(lambda value: value * factor, a)


def weighted_mean(trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """Return the weighted mean of several dictionaries of tensors.

    Integer tensors, such as step counters, are taken from the first dictionary.

    Args:
        trees: The dictionaries, all with the same names.
        weights: One weight for each dictionary. The weights need not add up to 1.
    """
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
    """Return the values of all tensors as one vector, in the order of the dictionary."""
    return torch.cat([value.reshape(-1) for value in a.values()])


def detach(a: Mapping[str, Tensor]) -> Params:
    """Return a dictionary of the same tensors, detached from their computation graph."""
    return elementwise(torch.Tensor.detach, a)


def to(a: Mapping[str, Tensor], device: torch.device | str) -> Params:
    """Return a dictionary of the same tensors, moved to another device."""
    return elementwise(lambda value: value.to(device), a)
