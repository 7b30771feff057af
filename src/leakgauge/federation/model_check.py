"""Checks that a model fits a client's samples and the loss, before any training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import Params, buffers_of, parameters_of
from leakgauge.core.seeding import seeded
from leakgauge.data.dataset import Dataset
from leakgauge.federation.losses import loss_of, takes_model
from leakgauge.federation.training import Batch, in_mode

#: The losses of Leakgauge, which need a tensor of outputs.
OWN_LOSSES = ("cross_entropy", "mse", "binary_cross_entropy")


def check_model(model: nn.Module, data: Dataset, loss: str) -> None:
    """Raise an error if the model does not fit the data or the loss."""
    if takes_model(loss_of(LocalTraining(loss=loss))):  # such a loss calls the model itself
        return
    outputs, targets = outputs_of(model, data), data.targets[:1]
    if not isinstance(outputs, Tensor):
        if loss in OWN_LOSSES:
            raise InvalidInput(
                f"the model must return a tensor of outputs, not {type(outputs).__name__}. Pass a loss of your own, "
                "loss=function or loss='module:function', which gets all that the model returns."
            )
        return
    _check_outputs(outputs.numel(), targets.numel(), data, loss)


def _check_outputs(outputs: int, targets: int, data: Dataset, loss: str) -> None:
    """Raise an error if the number of outputs per sample does not fit the loss.

    A loss that the user has defined allows any number of outputs.
    """
    if loss == "binary_cross_entropy" and data.spec.classes is not None and data.spec.classes > 2:
        raise InvalidInput(f"the loss {loss!r} is for two classes, but {data.name!r} has {data.spec.classes}")
    expected = {"cross_entropy": data.spec.classes, "binary_cross_entropy": targets, "mse": targets}.get(loss, outputs)
    if expected is None:
        raise InvalidInput(f"the loss {loss!r} needs classes, but {data.name!r} is a regression. Use loss='mse'.")
    if outputs != expected:
        if outputs == 1 and data.spec.classes == 2:
            raise InvalidInput(
                f"the model has one output for two classes, which needs the loss 'binary_cross_entropy', not {loss!r}. "
                "Set this loss, or leave the loss out."
            )
        reason = f"has {expected} classes" if loss == "cross_entropy" else f"with the loss {loss!r} needs {expected}"
        raise InvalidInput(
            f"the model has {outputs} outputs, but {data.name!r} {reason}. Build the model with {expected} outputs."
        )


def outputs_of(model: nn.Module, data: Dataset) -> object:
    """Return the outputs of a model for one sample, in whatever form the model returns them."""
    weights = parameters_of(model)
    if not weights:
        raise InvalidInput("the model has no parameters, so there is nothing to train")
    inputs, _ = prepared(data.share([0]), weights)
    try:
        with torch.no_grad(), in_mode(model, "eval"), seeded(0, "check"):
            return functional_call(model, {**weights, **buffers_of(model)}, (inputs,))
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as problem:
        first_line = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise InvalidInput(f"the model does not accept samples of shape {data.spec.shape}: {first_line}") from problem


def prepared(data: Dataset, weights: Params) -> Batch:
    """Return the normalised samples and the targets of a client, with the device and number type of ``weights``."""
    like = next(iter(weights.values()))
    inputs = data.spec.normalise(data.inputs.to(like.device, like.dtype))
    targets = data.targets.to(like.device)
    return inputs, targets.to(like.dtype) if targets.is_floating_point() else targets
