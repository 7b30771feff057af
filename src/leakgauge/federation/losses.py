"""The losses of clients, by name.

A loss is a function of the model's outputs and the targets. The outputs are whatever the model returns, such as a
tensor, a tuple or a dictionary. If a model needs more than its inputs for its loss, the loss is a function with three
arguments, ``loss(model, inputs, targets)``. It calls the model itself::

    def own_loss(model, inputs, targets):
        return model(inputs, labels=targets).loss

Use it with ``fedavg(..., loss=own_loss)`` in Python, or with ``loss = "mymodule:own_loss"`` in TOML. A capture, which
is a saved observation, stores only the name of the loss. A name in a capture never causes an import of code. To attack
such a capture, pass ``--know loss=mymodule:own_loss``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core.errors import InvalidInput, UnknownName, shown
from leakgauge.core.local_training import LONGEST_LOSS, LocalTraining
from leakgauge.models.factories import current_directory_importable, explained

Loss = Callable[..., Tensor]


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of a regression whose model returns one value for each number of the targets."""
    return (outputs.reshape(targets.shape) - targets).square().mean()


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error of a regression."""
    return (outputs.reshape(targets.shape) - targets).abs().mean()


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Huber loss of a regression, which is squared up to an error of 1 and linear above (Huber 1964)."""
    return F.huber_loss(outputs.reshape(targets.shape), targets.to(outputs.dtype))


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of a model that returns one logit for each entry of the targets.

    Args:
        outputs: The logits.
        targets: The labels 0 and 1, the probabilities of label 1, or the probabilities of both classes in the last
            dimension.
    """
    if targets.numel() == 2 * outputs.numel() and targets.dim() > 1 and targets.shape[-1] == 2:
        targets = targets[..., 1]
    return F.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets.to(outputs.dtype))


def smooth_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    r"""Return :math:`\sqrt{e^2 + w^2} - w` of each error :math:`e`, with a tenth of the mean error as the width."""
    error = outputs.reshape(targets.shape) - targets
    width = 0.1 * error.detach().abs().mean() + 1e-12
    return ((error.square() + width.square()).sqrt() - width).mean()


def smooth_huber(outputs: Tensor, targets: Tensor) -> Tensor:
    r"""Return the pseudo-Huber loss :math:`\sqrt{e^2 + 1} - 1` of each error :math:`e`."""
    error = outputs.reshape(targets.shape) - targets
    return ((error.square() + 1).sqrt() - 1).mean()


#: The losses by name. To add a function of outputs and targets, write ``LOSSES["mine"] = function``.
LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "mse": mean_squared_error,
    "l1": mean_absolute_error,
    "huber": huber,
    "binary_cross_entropy": binary_cross_entropy,
}


#: The losses that only attackers use. They stand for losses whose derivatives do not depend on distant targets.
SMOOTHED: dict[str, Loss] = {"l1 (smoothed)": smooth_absolute_error, "huber (smoothed)": smooth_huber}


def named_loss(loss: str | Loss) -> str:
    """Register a loss that the user has defined, and return its name.

    Call this function only for a loss that the user names, because it may import code. Never call it for a name from a
    capture.

    Args:
        loss: The name of a registered loss, ``module:function``, or a function.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            LOSSES[loss] = _imported(loss)
        return loss
    if not callable(loss):
        raise InvalidInput(f"loss must be a name or a function of outputs and targets, not {loss!r}")
    base = f"{getattr(loss, '__module__', 'python')}:{getattr(loss, '__qualname__', type(loss).__name__)}"[:150]
    name, number = base, 1
    while LOSSES.get(name, loss) is not loss:  # another function of the same name
        number += 1
        name = f"{base}#{number}"
    LOSSES[name] = loss
    return name


def loss_of(training: LocalTraining) -> Loss:
    """Return the loss function for the given training settings, with label smoothing.

    Args:
        training: The settings of the client's training.
    """
    loss = LOSSES.get(training.loss) or SMOOTHED.get(training.loss)
    if loss is None:
        hint = f" Name it with loss={training.loss!r} or --know loss={training.loss}." if ":" in training.loss else ""
        raise (
            InvalidInput(f"{UnknownName('loss', training.loss, LOSSES)}.{hint}")
            if hint
            else UnknownName("loss", training.loss, LOSSES)
        )
    smoothing = float(training.label_smoothing or 0.0)
    if not smoothing:
        return loss
    if training.loss == "cross_entropy":
        return lambda outputs, targets: F.cross_entropy(outputs, targets, label_smoothing=smoothing)
    if training.loss == "binary_cross_entropy":
        return lambda outputs, targets: binary_cross_entropy(
            outputs, (1 - smoothing) * targets.to(outputs.dtype) + smoothing / 2
        )
    raise InvalidInput(
        f"label_smoothing needs the loss cross_entropy or binary_cross_entropy, not {training.loss!r}. "
        "Smooth the targets in your own loss instead."
    )


def takes_model(loss: Loss) -> bool:
    """Return whether a loss has the three arguments ``(model, inputs, targets)``."""
    try:
        arguments = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(item.kind in plain and item.default is item.empty for item in arguments) == 3


class WithLoss(nn.Module):
    """A model and its loss as one module, whose output is the loss.

    Args:
        model: The model, which the loss function calls.
        loss: The function ``loss(model, inputs, targets)``.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return self.loss(self.model, inputs, targets)


def _imported(name: str) -> Loss:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise UnknownName("loss", name, LOSSES)
    if len(name) > LONGEST_LOSS or not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise InvalidInput(f"the name of your own loss must be 'module:function', not {shown(name)}")
    with current_directory_importable(), explained(f"importing the loss {name!r}"):
        function: Any = getattr(importlib.import_module(module_name), attribute, None)
    if not callable(function):
        raise InvalidInput(f"{name!r} is not a function of outputs and targets. Name one that the module defines.")
    return function  # type: ignore[no-any-return]
