"""What kinds of layers a model consists of, from its input to its output: for weights that differ between them."""

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
    """A module with parameters of its own: the module's name, its kind, the names of the parameters."""

    name: str
    kind: Kind
    parameters: tuple[str, ...]


def layers_of_model(model: nn.Module, parameters: Iterable[str]) -> tuple[Layer, ...]:
    """The layers that these parameters belong to, in the order in which the model defines them.

    A kernel and its bias are one layer. Anything but convolutions, normalisations and linear layers is of the kind
    ``"other"``: embeddings, recurrent cells, parameters that a module holds by itself.
    """
    members: dict[str, list[str]] = {}
    for name in parameters:
        members.setdefault(name.rpartition(".")[0], []).append(name)
    order = [name for name, _ in model.named_modules() if name in members]
    return tuple(Layer(name, _kind(model.get_submodule(name)), tuple(members[name])) for name in order)


def _kind(module: nn.Module) -> Kind:
    return next((kind for types, kind in _KINDS if isinstance(module, types)), "other")
