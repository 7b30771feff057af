"""Functions that find the layers that convert a sample to tokens, by what they compute and not by their names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.seeding import generator
from leakgauge.federation.training import in_mode

#: Two gradients are the same if their relative difference is below this.
SAME = 1e-3
#: The standard deviation of the random weights in the place of zeros.
REPLACED_ZEROS = 0.01
#: Layers whose parameters are no positions.
LAYERS = (nn.Linear, _ConvNd, nn.LayerNorm, nn.MultiheadAttention)
#: The largest number of tokens before the patches, such as a class token.
LEADING_TOKENS = 16


@dataclass(frozen=True, eq=False)
class PatchLayer:
    """The layer that embeds patches of a sample, each as one token.

    Args:
        name: The name of the layer.
        pixels: For each pixel of a patch, its index in the flattened sample, (patches, pixels of a patch). The pixels
            are in the order of the layer's weights.
        width: The size of a token.
    """

    name: str
    pixels: Tensor
    width: int

    @property
    def weight(self) -> str:
        """The name of the layer's weights in the model."""
        return f"{self.name}.weight".removeprefix(".")

    @property
    def bias(self) -> str:
        """The name of the layer's bias in the model. The layer may have no bias."""
        return f"{self.name}.bias".removeprefix(".")


@dataclass(frozen=True)
class PositionParameter:
    """A trained parameter that is added to the tokens.

    Args:
        name: The name of the parameter.
        first: The index of the parameter's row for the first patch. Earlier rows belong to other tokens, such as a
            class token.
        scale: The gradient with respect to a token, divided by that of the parameter's row for this token. It is 1
            unless the model scales the tokens or the parameter.
    """

    name: str
    first: int
    scale: float

    def token_gradients(self, update: Params, layer: PatchLayer) -> Tensor:
        """Return the gradient at the token of each patch, (patches, width).

        Args:
            update: The update of all parameters.
            layer: The layer that embeds the patches.
        """
        rows = _rows(update[self.name], layer.width)
        assert rows is not None
        return self.scale * rows[self.first : self.first + len(layer.pixels)]


def find_patch_layer(observation: Observation) -> PatchLayer | None:
    """Return the trained layer that embeds patches of a sample, or ``None`` if the model has none.

    The layer is a convolution whose stride equals its kernel size, or a linear layer that sees the pixels of one patch
    at a time. One forward pass shows which pixels a layer sees, because the value of each pixel in this pass is its own
    index.
    """
    weights = observation.sent
    like = next(iter(weights.values()))
    numbers = torch.arange(math.prod(observation.data.shape), device=like.device)
    seen: dict[str, list[Tensor]] = {}

    def keep_input(name: str, inputs: tuple[Tensor, ...]) -> None:
        seen.setdefault(name, []).extend(value.detach().clone() for value in inputs)

    layers = {name: module for name, module in observation.model.named_modules() if _may_embed(module)}
    handles = [
        module.register_forward_pre_hook(lambda module, inputs, name=name: keep_input(name, inputs))
        for name, module in layers.items()
    ]
    with _removed_afterwards(handles):
        _outputs(observation, weights, numbers.to(like).reshape(1, *observation.data.shape))
    for name, inputs in seen.items():
        module = layers[name]
        pixels = _patches(module, inputs[0]) if len(inputs) == 1 else None
        if pixels is not None and len(pixels) > 1 and torch.equal(pixels.flatten().sort().values, numbers.to(pixels)):
            return PatchLayer(name, pixels.long(), module.weight.shape[0])
    return None


def find_positions(observation: Observation, layer: PatchLayer) -> PositionParameter | None:
    """Return the trained parameter that is added to the tokens, or ``None`` if there is none.

    The gradient of such a parameter is the gradient at the output of the patch layer. One backward pass on a random
    sample shows which parameter has this property. Weights that are all zero are replaced by small random weights
    for this pass, because no gradient passes a last layer of zeros.

    Args:
        observation: The message of the client.
        layer: The layer that embeds the patches.
    """
    candidates = [name for name in _free_parameters(observation.model) if _holds_rows(observation, name, layer)]
    if not candidates:
        return None
    draws = generator(0, "positions")
    weights = dict(observation.sent)
    for name, value in weights.items():
        if not bool(value.any()):
            weights[name] = REPLACED_ZEROS * torch.randn(value.shape, generator=draws).to(value)
    for name in (layer.weight, *candidates):
        weights[name] = weights[name].detach().requires_grad_()
    like = weights[layer.weight]
    tokens: list[Tensor] = []
    handle = observation.model.get_submodule(layer.name).register_forward_hook(
        lambda module, inputs, output: tokens.append(output)
    )
    with _removed_afterwards([handle]), torch.enable_grad():
        outputs = _outputs(observation, weights, torch.randn(1, *observation.data.shape, generator=draws).to(like))
        loss = (outputs * torch.randn(outputs.shape, generator=draws).to(like)).sum()
        sources = [tokens[0], *(weights[name] for name in candidates)]
        at_tokens, *others = cast("list[Tensor | None]", torch.autograd.grad(loss, sources, allow_unused=True))
    for name, gradient in zip(candidates, others, strict=True):
        if gradient is None or at_tokens is None:
            continue
        position = _matching_rows(name, gradient, _token_rows(at_tokens, layer.width))
        if position is not None:
            return position
    return None


def _free_parameters(model: nn.Module) -> Iterator[str]:
    """Return the names of the trained parameters that belong to no standard layer (the kinds in ``LAYERS``)."""
    for prefix, module in model.named_modules():
        if not isinstance(module, LAYERS):
            for name, value in module.named_parameters(prefix, recurse=False):
                if value.requires_grad:
                    yield name


def _holds_rows(observation: Observation, name: str, layer: PatchLayer) -> bool:
    """Return whether a parameter can hold one row for each patch.

    The message holds a tied parameter under one name only. The result is false for the other names of a tied parameter.
    """
    rows = _rows(observation.sent[name], layer.width) if name in observation.sent else None
    return rows is not None and len(rows) >= len(layer.pixels)


def _may_embed(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return module.weight.requires_grad
    return (
        isinstance(module, nn.Conv2d)
        and module.weight.requires_grad
        and module.kernel_size == module.stride
        and module.padding in ("valid", (0, 0))
        and module.dilation == (1, 1)
        and module.groups == 1
    )


def _patches(module: nn.Module, inputs: Tensor) -> Tensor | None:
    """Return the pixels of each patch that a layer sees, (patches, pixels), in the order of the layer's weights."""
    if isinstance(module, nn.Conv2d):
        return F.unfold(inputs, module.kernel_size, stride=module.kernel_size)[0].T if inputs.ndim == 4 else None
    return inputs.reshape(-1, inputs.shape[-1])


def _rows(tensor: Tensor, width: int) -> Tensor | None:
    """Return a parameter as a matrix with one row for each token, or ``None`` if its shape does not allow this."""
    if tensor.ndim >= 2 and tensor.shape[-1] == width:
        return tensor.reshape(-1, width)
    if tensor.ndim >= 3 and tensor.shape[-3] == width and math.prod(tensor.shape[:-3]) == 1:  # a map, as of an image
        return tensor.reshape(width, -1).T
    return None


def _token_rows(gradient: Tensor, width: int) -> Tensor:
    """Return the gradient at the output of a patch layer as a matrix with one row for each patch."""
    return (
        gradient.flatten(2)[0].T if gradient.ndim == 4 and gradient.shape[1] == width else gradient.reshape(-1, width)
    )


def _matching_rows(name: str, gradient: Tensor, at_tokens: Tensor) -> PositionParameter | None:
    """Find the rows of a parameter that belong to the tokens, or return ``None``.

    The gradient of these rows is proportional to the gradient at the tokens.
    """
    rows = _rows(gradient, at_tokens.shape[1])
    assert rows is not None
    for first in range(min(len(rows) - len(at_tokens), LEADING_TOKENS) + 1):
        part = rows[first : first + len(at_tokens)]
        size = float(part.square().sum())
        if not size:
            continue
        scale = float((part * at_tokens).sum()) / size
        if scale and float((scale * part - at_tokens).norm()) < SAME * float(at_tokens.norm()):
            return PositionParameter(name, first, scale)
    return None


def _outputs(observation: Observation, weights: Params, inputs: Tensor) -> Tensor:
    """Return the outputs of the model in eval mode, with the given weights."""
    with in_mode(observation.model, "eval"):
        outputs: Tensor = functional_call(observation.model, {**weights, **observation.model_buffers()}, (inputs,))
    return outputs


@contextmanager
def _removed_afterwards(handles: list[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    """Remove the hooks at the end of the ``with`` block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
