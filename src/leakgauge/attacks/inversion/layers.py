"""The layers of a model, from its input to its output, and the kind of each layer, such as convolution."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

Kind = Literal["convolution", "normalisation", "linear", "other"]

_KINDS: tuple[tuple[tuple[type[nn.Module], ...], Kind], ...] = (
    ((_ConvNd,), "convolution"),
    ((_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm), "normalisation"),
    ((nn.Linear, nn.Bilinear), "linear"),
)


@dataclass(frozen=True)
class Layer:
    """A module that has parameters of its own.

    Args:
        name: The name of the module.
        kind: ``"convolution"``, ``"normalisation"``, ``"linear"`` or ``"other"``.
        parameters: The names of the module's parameters.
    """

    name: str
    kind: Kind
    parameters: tuple[str, ...]


def layers_of_model(model: nn.Module, parameters: Iterable[str]) -> tuple[Layer, ...]:
    """Return the layers to which the given parameters belong, in the order in which the model defines the layers.

    A kernel and its bias are one layer. Layers that are not convolutions, normalisations or linear layers have the kind
    ``"other"``. Embeddings and recurrent cells are examples.

    Args:
        model: The model that has these parameters.
        parameters: The names of the parameters.
    """
    members: dict[str, list[str]] = {}
    for name in parameters:
        members.setdefault(name.rpartition(".")[0], []).append(name)
    order = [name for name, _ in model.named_modules() if name in members]
    return tuple(Layer(name, _kind(model.get_submodule(name)), tuple(members[name])) for name in order)


def _kind(module: nn.Module) -> Kind:
    return next((kind for types, kind in _KINDS if isinstance(module, types)), "other")
