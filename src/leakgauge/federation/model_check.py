"""Checks whether a model can be trained on the data of a client, before and after its training.

A user's model, loss or data may be wrong in any way. Every check ends in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from leakgauge.core.errors import InvalidInput, LeakgaugeError, printable
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import Params, buffers_of, parameters_of
from leakgauge.core.seeding import seeded
from leakgauge.data.dataset import Dataset
from leakgauge.federation.losses import loss_of, takes_model
from leakgauge.federation.training import Batch, Trainer, in_mode
from leakgauge.models.factories import in_words

#: The losses of Leakgauge, which need a tensor of outputs.
OWN_LOSSES = ("cross_entropy", "mse", "l1", "huber", "binary_cross_entropy")
#: The losses that compare each output with one entry of the targets.
VALUE_BY_VALUE = ("mse", "l1", "huber", "binary_cross_entropy")
#: The number of samples with which a model is tried.
PROBED = 2
#: The largest number of samples with which the derivatives of a model are tried.
MOST_PROBED = 8
#: The advice for a model with an embedding that does not accept the samples.
LOOKUP_HINT = (
    ". Samples are real numbers here, also token ids and codes of categories. Begin forward with "
    "inputs = inputs.round().long(), and describe the data with mean = 0 and std = 1, so that the ids stay whole"
)
#: A loss above this means that training diverged. Single precision ends at 3.4e38.
DIVERGED = 1e30


def prepared(data: Dataset, weights: Params) -> Batch:
    """Return the normalised samples and the targets of a client, with the device and number type of ``weights``."""
    like = next(iter(weights.values()))
    inputs = data.spec.normalise(data.inputs.to(like.device, like.dtype))
    targets = data.targets.to(like.device)
    return inputs, targets.to(like.dtype) if targets.is_floating_point() else targets


def check_weights(model: nn.Module) -> None:
    """Raise an error if the parameters or buffers of a model cannot be trained, such as those of a lazy layer.

    Args:
        model: The model.
    """
    with explaining("the model's parameters cannot be listed"):
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        str(model), model.state_dict()
    if not parameters:
        raise InvalidInput("the model has no parameters, so there is nothing to train")
    if not any(value.requires_grad for value in parameters.values()):
        raise InvalidInput("no parameter of the model requires a gradient, so there is nothing to train")
    for name, value in {**parameters, **buffers}.items():
        if is_lazy(value):
            raise InvalidInput(f"{name} of the model has no shape yet. Run the model on one batch in its factory")
        if value.is_meta:
            raise InvalidInput(f"{name} of the model is on the device meta, without values. Build it on the CPU")
        if value.is_complex():
            raise InvalidInput(f"{name} of the model holds complex numbers. Only real models can be audited")
        if value.layout != torch.strided:
            raise InvalidInput(f"{name} of the model is sparse. Only dense weights can be audited")
        if not bool(torch.isfinite(value).all()):
            raise InvalidInput(f"{name} of the model holds NaN or Inf. Load or draw its weights anew")


def check_model(model: nn.Module, data: Dataset, loss: str) -> None:
    """Raise an error if the model does not fit the data or the loss."""
    check_weights(model)
    _check_outputs_of(model, data, loss)
    _check_loss(model, data, loss)


def _check_outputs_of(model: nn.Module, data: Dataset, loss: str) -> None:
    if takes_model(loss_of(LocalTraining(loss=loss))):  # such a loss calls the model itself
        return
    outputs, targets = outputs_of(model, data), data.targets[:PROBED]
    if not isinstance(outputs, Tensor):
        if loss in OWN_LOSSES:
            raise InvalidInput(
                f"the model must return a tensor of outputs, not {type(outputs).__name__}. Pass a loss of your own, "
                "loss=function or loss='module:function', which gets all that the model returns."
            )
        return
    if outputs.is_complex() or not outputs.is_floating_point():
        raise InvalidInput(f"the model must return real numbers as outputs, not {outputs.dtype}")
    if not bool(torch.isfinite(outputs).all()):
        raise InvalidInput(
            "the model returns NaN or Inf for the first sample. Correct its weights, or scale the samples"
        )
    if loss in OWN_LOSSES and (outputs.dim() == 0 or len(outputs) != len(targets)):
        raise InvalidInput(
            f"the model returns outputs of shape {tuple(outputs.shape)} for {len(targets)} samples. Return one row of "
            "outputs for each sample of a batch"
        )
    _check_outputs(outputs.numel() // len(targets), targets.numel() // len(targets), data, loss)


def _check_loss(model: nn.Module, data: Dataset, loss: str) -> None:
    """Raise an error if the loss of two samples is no finite number that depends on the weights."""
    weights = parameters_of(model)
    batch = prepared(data.share(range(min(PROBED, len(data)))), weights)
    trainer = Trainer(model, LocalTraining(loss=loss, mode="eval"))
    with explaining(f"the loss {loss!r} cannot be computed"), seeded(0, "check"), trainer.active():
        weights = {name: value.requires_grad_(name in trainer.trainable) for name, value in weights.items()}
        value: object = trainer.loss(trainer.start(weights, None), batch)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
            given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(f"the loss {loss!r} must return a single real number as a tensor, not {given}")
        if not bool(torch.isfinite(value)):
            raise InvalidInput(f"the loss {loss!r} is NaN or Inf for the first samples. Correct the loss or the model")
        if not value.requires_grad:
            raise InvalidInput(
                f"the loss {loss!r} does not depend on the model's weights, because the model or the loss detaches its "
                "result. Leave out detach(), no_grad(), item() and numpy()"
            )


def outputs_of(model: nn.Module, data: Dataset) -> object:
    """Return the outputs of a model for one sample, in whatever form the model returns them."""
    check_weights(model)
    weights = parameters_of(model)
    inputs, _ = prepared(data.share(range(min(PROBED, len(data)))), weights)
    try:
        with torch.no_grad(), in_mode(model, "eval"), seeded(0, "check"):
            return functional_call(model, {**weights, **buffers_of(model)}, (inputs,))
    except Exception as problem:  # a user's model may raise anything
        hint = LOOKUP_HINT if _looks_up(model) else ""
        raise InvalidInput(
            f"the model does not accept samples of shape {data.spec.shape}: {in_words(problem)}{hint}"
        ) from problem


def _looks_up(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules())


def _check_outputs(outputs: int, targets: int, data: Dataset, loss: str) -> None:
    """Raise an error if the number of outputs per sample does not fit the loss.

    A loss that the user has defined allows any number of outputs.
    """
    if loss == "binary_cross_entropy" and data.spec.classes is not None and data.spec.classes > 2:
        raise InvalidInput(f"the loss {loss!r} is for two classes, but {data.name!r} has {data.spec.classes}")
    expected = {"cross_entropy": _outputs_of_classes(targets, data), **dict.fromkeys(VALUE_BY_VALUE, targets)}.get(
        loss, outputs
    )
    if expected is None:
        raise InvalidInput(f"the loss {loss!r} needs classes, but {data.name!r} is a regression. Use loss='mse'.")
    if outputs != expected:
        if outputs == 1 and data.spec.classes == 2:
            raise InvalidInput(
                f"the model has one output for two classes, which needs the loss 'binary_cross_entropy', not {loss!r}. "
                "Set this loss, or leave the loss out."
            )
        classes = loss == "cross_entropy" and data.spec.classes is not None
        reason = f"has {expected} classes" if classes else f"with the loss {loss!r} needs {expected}"
        more = f" If the data only lacks some classes of the model, describe it with classes={outputs}."
        raise InvalidInput(
            f"the model has {outputs} outputs, but {data.name!r} {reason}. Build the model with {expected} outputs."
            f"{more if classes and outputs > expected else ''}"
        )


def _outputs_of_classes(targets: int, data: Dataset) -> int | None:
    """Return the number of outputs that cross-entropy needs, or ``None`` if the targets are no classes.

    Args:
        targets: The number of entries of one sample's target.
        data: The client's samples.
    """
    if data.spec.classes is not None or data.spec.target_values is None:
        return data.spec.classes
    return targets if data.targets.is_floating_point() else data.spec.target_values * targets


@contextmanager
def explaining(action: str = "the client's training failed") -> Iterator[None]:
    """Convert whatever a user's model or loss raises in the ``with`` block to an error of one sentence.

    Args:
        action: The words for what failed.
    """
    try:
        yield
    except LeakgaugeError:
        raise
    except Exception as problem:
        if "more than 1 value per channel" in str(problem):
            raise InvalidInput(
                "batch norm in train mode cannot train on a batch of one sample. "
                "Use a batch size that leaves no single last sample, or mode='eval'."
            ) from problem
        plain = isinstance(problem, ValueError) and str(problem).strip()
        words = printable(str(problem).strip().splitlines()[0]) if plain else in_words(problem)
        raise InvalidInput(f"{action}: {words}") from problem


def check_progress(model: nn.Module, data: Batch, training: LocalTraining, before: Params, after: Params) -> None:
    """Raise an error if local training diverged, so that the loss is not finite or almost too large for a float.

    Args:
        model: The architecture.
        data: The client's samples, from :func:`prepared`.
        training: The settings of the client's training.
        before: The weights before local training.
        after: The weights after local training.
    """
    trainer = Trainer(model, training)
    with explaining(), seeded(0, "check"), torch.no_grad(), trainer.active():
        first, last = (float(trainer.loss(trainer.start(weights, None), data)) for weights in (before, after))
    if not abs(last) <= DIVERGED:  # also if it is NaN
        rate = "" if training.lr is None else f" with the learning rate {training.lr:g}"
        raise InvalidInput(
            f"local training{rate} diverges, because the client's loss goes from {first:.3g} to {last:.3g}. "
            "Use a smaller learning rate or weight decay"
        )


def check_differentiable(model: nn.Module, data: Batch, training: LocalTraining, weights: Params) -> None:
    """Raise an error if an attack cannot differentiate the gradient of a model with respect to the samples.

    Args:
        model: The architecture.
        data: Samples of a client, from :func:`prepared`.
        training: The settings of the client's training.
        weights: The weights that the client gets.
    """
    trainer = Trainer(model, training, as_attacker=True)
    inputs, targets = (side[:MOST_PROBED] for side in data)
    inputs = inputs.clone().requires_grad_()
    action = "attacks cannot differentiate this model, so write it without in-place operations on its inputs and numpy"
    with explaining(action), seeded(0, "check"), trainer.active():
        gradient, _ = trainer.gradient(trainer.start(weights, None), (inputs, targets), graph=True)
        square = torch.stack([value.square().sum() for value in gradient.values()]).sum()
        if square.requires_grad:
            torch.autograd.grad(square, inputs, allow_unused=True)
