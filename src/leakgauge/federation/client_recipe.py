"""The training settings that the clients of a federation share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import OF_ONE_GRADIENT
from leakgauge.core.observation import LocalTraining, Mode
from leakgauge.data.dataset import Dataset
from leakgauge.federation.losses import Loss, named_loss
from leakgauge.federation.model_check import PROBED, outputs_of


@dataclass(frozen=True)
class Recipe:
    """The training settings that all clients of a federation share.

    An argument that is ``None`` takes its value from ``base``.

    Args:
        lr: The learning rate. It may be missing here and in ``base`` if clients send a single gradient.
        epochs: The number of passes over the client's samples.
        batch_size: The number of samples in a batch. If neither this argument nor ``base`` has it, all samples form one
            batch.
        momentum: The momentum of SGD.
        weight_decay: The weight decay.
        loss: A loss, as in :func:`~leakgauge.federation.client.fedavg`.
        mode: The mode of the model during training, ``"train"`` or ``"eval"``.
        base: The settings that have no argument here, and the values of arguments that are ``None``.
    """

    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    loss: str | Loss | None = None
    mode: Mode | None = None
    base: LocalTraining | None = None

    def for_client(self, data: Dataset, model: nn.Module) -> LocalTraining:
        """Return the training settings of a client that holds ``data``. A batch is never larger than the data.

        Args:
            data: The client's samples.
            model: The model that the client trains.
        """
        if not len(data):
            raise InvalidInput(f"client {data.name!r} has no samples to train on")
        if self.base is not None and not isinstance(self.base, LocalTraining):
            raise InvalidInput(f"recipe must be a LocalTraining, not {type(self.base).__name__}")
        base = self.base or LocalTraining()
        names = ("lr", "epochs", "batch_size", "momentum", "weight_decay", "mode")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        loss = named_loss(self.loss) if self.loss is not None else default_loss(model, data, self.base)
        if base.local_steps is not None:
            if "epochs" in given:
                raise InvalidInput("the client's training has epochs and local_steps. Set one of them.")
            base = replace(base, epochs=None, samples=None)  # the epochs follow from the samples and the batches
        training = replace(base, **given, samples=len(data), loss=loss)
        size = training.batch_size or len(data)
        training = replace(training, batch_size=min(size, len(data)))
        return training if training.epochs else replace(training, epochs=1)


def default_loss(model: nn.Module, data: Dataset, recipe: LocalTraining | None = None) -> str:
    """Return the name of the loss that a client uses if the user names no loss.

    The result is mean squared error for numbers, binary cross-entropy for labels of 0 and 1 if the model has one output
    for each of them, and cross-entropy otherwise.

    Args:
        model: The model that the client trains.
        data: The client's samples.
        recipe: The training settings, if the user gives any. A loss that differs from the default of
            :class:`LocalTraining` is returned as it is.
    """
    if recipe is not None and recipe.loss != LocalTraining.loss:
        return recipe.loss
    if data.spec.classes is None:
        return _loss_of_several(model, data)
    if data.spec.classes != 2:
        return "cross_entropy"
    outputs = outputs_of(model, data)
    single = isinstance(outputs, Tensor) and outputs.numel() == min(PROBED, len(data))
    return "binary_cross_entropy" if single else "cross_entropy"


def _loss_of_several(model: nn.Module, data: Dataset) -> str:
    """Return the name of the default loss for targets that are not one class of each sample."""
    if data.spec.target_values is None:
        return "mse"
    everyone, outputs = data.population or data, outputs_of(model, data)
    one_output_each = isinstance(outputs, Tensor) and outputs.numel() == data.targets[:PROBED].numel()
    if data.spec.target_values != 2 or not one_output_each or is_one_hot(everyone.targets):
        return "cross_entropy"
    return "binary_cross_entropy"


def is_one_hot(targets: Tensor) -> bool:
    """Return whether targets are one class of each sample, which is written as a row with a single 1.

    >>> is_one_hot(Tensor([[0, 1], [1, 0]])), is_one_hot(Tensor([[1, 1], [1, 0]]))
    (True, False)

    Args:
        targets: The targets of all samples.
    """
    return targets.dim() == 2 and targets.shape[1] > 1 and bool((targets.sum(1) == 1).all())


def of_one_gradient(recipe: LocalTraining | None) -> LocalTraining | None:
    """Return a copy of the settings, with the default for each setting that does not affect a single gradient."""
    if recipe is None:
        return None
    kept = {name: getattr(recipe, name) for name in OF_ONE_GRADIENT if name != "samples"}
    return LocalTraining(**kept)
