"""The layers of a model that a malicious server needs, found by their inputs rather than by their names.

Traps need a dense layer that gets one vector for each sample, and a second dense layer that gets the activated outputs
of the first. The layers before the dense one must pass the sample on. A forward pass of dummy samples shows which
layers are called, in which order, and what each of them sees.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic.dense import DoesNotFit, Reached, stop_at_input
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, to

#: The number of dummy samples in a forward pass.
DUMMIES = 3
#: The layers whose kernels a server may set such that they pass a sample on.
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Stage:
    """A convolution before the dense layer.

    Args:
        path: The path of the layer in the model.
        seen: The shape of its inputs for one sample, (channels, positions...).
        given: The shape of its outputs for one sample.
    """

    path: str
    seen: tuple[int, ...]
    given: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The layers in which a server can set traps.

    Args:
        stages: The convolutions before the dense layer, in the order of their calls.
        dense: The path of the dense layer that gets the traps.
        following: The path of the dense layer that gets the activated outputs of the first.
        features: The number of inputs of the dense layer.
    """

    stages: tuple[Stage, ...]
    dense: str
    following: str
    features: int


def filled(model: nn.Module, weights: Params, buffers: Params, mode: str, dtype: torch.dtype) -> nn.Module:
    """Return a copy of an architecture with the given weights, which needs no gradients.

    Args:
        model: The architecture.
        weights: The weights by name.
        buffers: The buffers by name.
        mode: The mode of the client's training, ``"train"`` or ``"eval"``.
        dtype: The precision of the copy.
    """
    device = next(iter(weights.values())).device
    model = copy.deepcopy(model).to(device, dtype)
    model.train(mode == "train")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
            parameter.requires_grad_(False)
        for name, buffer in model.named_buffers():
            buffer.copy_(to(buffers, device)[name])
    return model


def sent_model(observation: Observation, dtype: torch.dtype) -> nn.Module:
    """Return a copy of the model with the weights that the server sent.

    Args:
        observation: The message of the client.
        dtype: The precision of the copy.
    """
    mode = observation.training.mode
    return filled(observation.model, observation.sent, observation.model_buffers(), mode, dtype)


def layout_of(model: nn.Module, shape: tuple[int, ...]) -> Layout:
    """Return the layers of a model in which a server can set traps.

    If there are none, :class:`~leakgauge.attacks.analytic.dense.DoesNotFit` is raised with the reason.

    Args:
        model: The model, in the mode of the client's training.
        shape: The shape of one sample.
    """
    calls = _calls(model, shape)
    dense = [
        (number, path, inputs)
        for number, (path, module, inputs, _) in enumerate(calls)
        if isinstance(module, nn.Linear) and inputs.dim() == 2 and len(inputs) == DUMMIES
    ]
    for (number, path, inputs), (_, following, behind) in itertools.pairwise(dense):
        layer = model.get_submodule(path)
        assert isinstance(layer, nn.Linear)
        if layer.bias is None or behind.shape[1] != layer.out_features or not _trained_once(model, calls, path):
            continue
        before = calls[:number]
        if any(not isinstance(module, CONVOLUTIONS) for _, module, _, _ in before):
            continue
        check_independent(model, shape, path)
        stages = tuple(Stage(name, tuple(seen.shape[1:]), tuple(given.shape[1:])) for name, _, seen, given in before)
        return Layout(stages, path, following, inputs.shape[1])
    raise DoesNotFit(
        "the model has no dense layer with a bias that gets one vector for each sample behind convolutions only, and "
        "whose activated outputs enter another dense layer"
    )


def features_of(model: nn.Module, layout: Layout, inputs: Tensor, batch: int = 256) -> Tensor:
    """Return the inputs of the trapped dense layer for inputs of the model.

    Args:
        model: The model.
        layout: Its layers.
        inputs: The inputs of the model, one for each sample.
        batch: The number of samples in one forward pass.
    """
    return torch.cat([_seen_by(model, layout.dense, part) for part in inputs.split(batch)])


def check_independent(model: nn.Module, shape: tuple[int, ...], path: str) -> None:
    """Raise :class:`DoesNotFit` if what a layer sees of one sample depends on other samples or on chance.

    Args:
        model: The model.
        shape: The shape of one sample.
        path: The path of the layer.
    """
    first = dummies(model, shape)
    second = torch.cat([first[:1], dummies(model, shape, seed=1)[1:]])
    before, after = _seen_by(model, path, first), _seen_by(model, path, second)
    if not torch.allclose(before[:1], after[:1], rtol=1e-4, atol=1e-6):
        raise DoesNotFit("the layers before the dense one mix samples or are random, as batch norm in training")


def dummies(model: nn.Module, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Return random inputs with the device and the precision of a model.

    Args:
        model: The model.
        shape: The shape of one sample.
        seed: The seed of the draw.
    """
    like = next(model.parameters())
    drawn = torch.rand(DUMMIES, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return drawn.to(like)


def _seen_by(model: nn.Module, path: str, inputs: Tensor) -> Tensor:
    handle = model.get_submodule(path).register_forward_pre_hook(stop_at_input)
    try:
        with torch.no_grad():
            model(inputs)
    except Reached as reached:
        return reached.inputs
    finally:
        handle.remove()
    raise DoesNotFit(f"the layer {path!r} is not called")


def _calls(model: nn.Module, shape: tuple[int, ...]) -> list[tuple[str, nn.Module, Tensor, Tensor]]:
    """Return the path, the module, the inputs and the outputs for each call of a layer with a kernel."""
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []

    def keep(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls.append((path, module, inputs[0], output))

        return hook

    kinds = (*CONVOLUTIONS, nn.Linear, nn.Embedding, nn.RNNBase, nn.MultiheadAttention)
    handles = [
        module.register_forward_hook(keep(path)) for path, module in model.named_modules() if isinstance(module, kinds)
    ]
    try:
        with torch.no_grad():
            model(dummies(model, shape))
    except Exception as problem:
        raise DoesNotFit(f"the model does not run on a dummy sample ({type(problem).__name__})") from problem
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _trained_once(model: nn.Module, calls: list[tuple[str, nn.Module, Tensor, Tensor]], path: str) -> bool:
    layer = model.get_submodule(path)
    owners = sum(value is layer.weight for module in model.modules() for value in module.parameters(False))
    return owners == 1 and sum(name == path for name, _, _, _ in calls) == 1


def size_of(shape: tuple[int, ...]) -> int:
    """Return the number of values of one sample."""
    return math.prod(shape)
