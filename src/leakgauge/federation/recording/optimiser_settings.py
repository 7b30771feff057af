"""The settings of an optimiser of PyTorch, as a client's recipe holds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from leakgauge.core.errors import InvalidInput

#: The optimisers that a recipe can name. A subclass may take other steps, so only these classes themselves count.
_NAMES: dict[type[Optimizer], str] = {SGD: "sgd", Adam: "adam", AdamW: "adamw"}
#: The settings of each of them that a recipe holds.
_SETTINGS = {
    "sgd": ("lr", "momentum", "weight_decay", "nesterov", "dampening"),
    "adam": ("lr", "weight_decay", "betas", "eps"),
    "adamw": ("lr", "weight_decay", "betas", "eps"),
}
#: Settings that change the steps, and that a recipe cannot hold.
_UNKNOWN = ("amsgrad", "maximize")


def optimiser_settings(optimizer: Optimizer) -> dict[str, Any]:
    """Return the settings of an optimiser under the names that :class:`~leakgauge.core.LocalTraining` has for them.

    An error is raised if attacks cannot repeat the steps of this optimiser. To take it for another one would hide
    leaks, because a simulation with a wrong optimiser finds nothing.

    >>> optimiser_settings(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1, momentum=0.9))["momentum"]
    0.9

    Args:
        optimizer: The optimiser.
    """
    name = _NAMES.get(type(optimizer))
    if name is None:
        raise InvalidInput(
            f"its optimiser is {type(optimizer).__name__}, and attacks can simulate only SGD, Adam and AdamW of "
            "torch.optim"
        )
    groups = [{key: _plain(value) for key, value in group.items()} for group in optimizer.param_groups]
    for setting in _UNKNOWN:
        if any(group.get(setting) for group in groups):
            raise InvalidInput(f"its optimiser is {type(optimizer).__name__} with {setting}, which no recipe can hold")
    if name == "adam" and any(group.get("decoupled_weight_decay") for group in groups):
        name = "adamw"
    found = [{setting: group[setting] for setting in _SETTINGS[name]} for group in groups]
    for setting in _SETTINGS[name]:
        values = [group[setting] for group in found]
        if any(value != values[0] for value in values):
            raise InvalidInput(
                f"the parameter groups of its optimiser have different values of {setting} ({values[0]} and "
                f"{next(value for value in values if value != values[0])}), and a recipe holds one"
            )
    others = {"momentum": 0.0, "nesterov": False, "dampening": 0.0} if name != "sgd" else {}
    return {"optimiser": name, **others, **found[0]}


def carries_state(optimizer: Optimizer) -> bool:
    """Return whether an optimiser holds averages of earlier gradients, such as a momentum buffer.

    Args:
        optimizer: The optimiser.
    """
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return any(bool(value.any()) for value in tensors)


def left_out(optimizer: Optimizer, model: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the weights that an optimiser does not change.

    Args:
        optimizer: The optimiser.
        model: The model that is trained.
    """
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    return tuple(name for name, value in model.named_parameters() if id(value) not in held)


def _plain(value: Any) -> Any:
    """Return a setting as a plain number, because a learning rate may be a tensor."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
