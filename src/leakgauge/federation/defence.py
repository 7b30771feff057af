"""The base classes of defences, one for each place in a client's round where a defence can act.

A defence derives from the class for the place where it acts. A defence that acts at two places derives from both
classes.

=========================  ====================================================================================
class                      what its defences do
=========================  ====================================================================================
:class:`RecipeDefence`     change settings before the training, such as the batch size or the number of epochs
:class:`BatchDefence`      change each batch before the network gets the batch
:class:`GradientDefence`   change the gradients of samples, the gradients of batches, or the update that is sent
:class:`TrainingDefence`   replace the whole local training
:class:`ServerDefence`     combine the messages of several clients, so that the server gets only their mean
=========================  ====================================================================================

A client applies several defences in the order given: ``fedavg(..., defences=(RandomPruning(0.2),
GaussianNoise(0.01)))``. Each defence draws from its own random generator, derived from the client's seed. The random
numbers of a defence therefore do not depend on the other defences, nor on whether clients are trained together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import LocalTraining, Mode
from leakgauge.core.params import Params
from leakgauge.core.seeding import generator

Place = Literal["samples", "gradient", "update"]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Defence:
    """A change to a client's training or message that protects the client's samples.

    A new defence derives from the subclass for the place where it acts. It is a frozen dataclass, and its fields are
    its settings. Its ``__post_init__`` raises an error if the settings cannot work. Observations and reports store its
    ``repr``.

    Attributes:
        name: The name in configuration files and on the command line. A class in the package
            :mod:`leakgauge.federation.defences` that sets ``name`` is registered under this name.
    """

    name: ClassVar[str] = ""


class RecipeDefence(Defence, ABC):
    """A defence that changes the settings of the client's training, such as the batch size or the number of epochs."""

    @abstractmethod
    def on_recipe(self, training: LocalTraining) -> LocalTraining:
        """Return the training settings that the client uses instead of ``training``."""


class BatchDefence(Defence, ABC):
    """A defence that changes each batch before the network gets it."""

    @abstractmethod
    def on_batch(self, batch: Batch, classes: int | None, draw: torch.Generator) -> Batch:
        """Return the batch that the client trains on instead of ``batch``.

        Args:
            batch: The normalised inputs and the targets.
            classes: The number of classes, or ``None`` for a regression. Targets may become class probabilities of
                shape (samples, classes).
            draw: The random generator of this defence, on the CPU.
        """


@dataclass(frozen=True)
class GradientDefence(Defence, ABC):
    """A defence that changes gradients.

    There are three places where it can act:

    - With ``"samples"``, it changes the gradient of each sample at each local step. The client then needs memory for
      one gradient per sample of a batch. This place does not work with batch norm in train mode.
    - With ``"gradient"``, it changes the gradient of the batch at each local step.
    - With ``"update"``, it changes the update that the client sends. The update is a gradient, or the weights that the
      client got minus the weights that the client returns.

    Args:
        on: The place where the defence acts, from the list above.
    """

    on: Place = field(default="samples", kw_only=True)

    def __post_init__(self) -> None:
        if self.on not in get_args(Place):
            raise UnknownName("place for a defence to act on", self.on, get_args(Place))

    @abstractmethod
    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the gradients that the client uses instead of ``gradients``, with the same names, shapes and types.

        Each gradient is protected separately. A parameter that the model does not use has a gradient of zeros. This
        gradient is protected like all other gradients.

        Args:
            gradients: A dictionary from the name of each parameter to one tensor. The first dimension of each tensor
                has one entry per gradient. With ``on="samples"`` there is one gradient for each sample of the batch.
                Otherwise there is one gradient.
            draw: The random generator of this defence, on the CPU.
        """


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a local training.

    Args:
        order: For each step, the indices of the samples in its batch.
        weights: The weights after the last step.
        buffers: The buffers after the last step.
    """

    order: tuple[Tensor, ...]
    weights: Params
    buffers: Params


class TrainingDefence(Defence, ABC):
    """A defence that replaces the whole local training."""

    @abstractmethod
    def train(
        self,
        model: nn.Module,
        samples: Batch,
        training: LocalTraining,
        start: Trained,
        participations: int,
        seed: int,
        on_batch: Callable[[Batch], Batch],
    ) -> Trained:
        """Train one client, and return the result.

        Args:
            model: The architecture.
            samples: All of the client's samples and targets, normalised.
            training: The recipe of the client's training, such as the learning rate and the number of epochs.
            start: The weights and buffers to start from.
            participations: The number of rounds in which the client takes part overall.
            seed: The seed of the client's random numbers.
            on_batch: The function that applies the client's batch defences to a batch.
        """

    @abstractmethod
    def gradient(
        self, model: nn.Module, samples: Batch, training: LocalTraining, start: Trained, participations: int, seed: int
    ) -> Params:
        """Return the gradient of all samples at the weights of ``start``, as a FedSGD client sends it."""

    @abstractmethod
    def check(self, model: nn.Module, training: LocalTraining) -> None:
        """Raise an error if the defence cannot train this model with these settings."""

    def spent(self, training: LocalTraining, participations: int = 1, *, planned: int | None = None) -> float | None:
        """Return the privacy budget (epsilon) that a client has spent, or ``None`` if the defence gives no guarantee.

        Args:
            training: The recipe of the client's training, such as the learning rate and the number of epochs.
            participations: The number of rounds in which the client has taken part.
            planned: The number of rounds over which the budget is spread. By default, ``participations``.
        """
        return None


class ServerDefence(Defence, ABC):
    """A defence with which the server gets only the mean of the messages of at least ``clients`` clients."""

    clients: int

    @abstractmethod
    def check(self, messages: int) -> None:
        """Raise an error if there are too few messages to hide a single message."""


class Protection:
    """The defences of one client, each with its own random generator.

    Args:
        defences: The defences, in the order in which they are applied.
        seed: The client's seed.
        classes: The number of classes, or ``None`` for a regression.
    """

    def __init__(self, defences: Sequence[Defence], seed: int, classes: int | None = None) -> None:
        self.defences = tuple(defences)
        self.classes = classes
        self._generators = [generator(seed, "defence", position) for position in range(len(self.defences))]

    @property
    def needs_sample_gradients(self) -> bool:
        """Whether a defence acts on the gradient of each sample."""
        return self._acts_on("samples")

    @property
    def acts_on_steps(self) -> bool:
        """Whether a defence changes the gradients of batches or replaces the local training."""
        return training_of(self.defences) is not None or self._acts_on("gradient")

    def on_batch(self, batch: Batch) -> Batch:
        """Apply the defences that change batches, and return the changed batch."""
        for defence, draw in zip(self.defences, self._generators, strict=True):
            if isinstance(defence, BatchDefence):
                batch = defence.on_batch(batch, self.classes, draw)
        return batch

    def mean_gradient(self, gradients: Params) -> Params:
        """Return the gradient of a batch, given the gradients of its samples.

        First, the defences that act on samples change the gradients of the samples. Then the defences that act on
        batches change the mean of these gradients.
        """
        changed = self._changed(gradients, "samples")
        return self.on_gradient({name: value.mean(0) for name, value in changed.items()})

    def on_gradient(self, gradient: Params) -> Params:
        """Apply the defences that change the gradients of batches, and return the changed gradient."""
        return self._changed_single(gradient, "gradient")

    def on_update(self, update: Params) -> Params:
        """Apply the defences that change updates, and return the changed update.

        Without such defences, return the same object.
        """
        return self._changed_single(update, "update")

    def _acts_on(self, place: Place) -> bool:
        return any(isinstance(defence, GradientDefence) and defence.on == place for defence in self.defences)

    def _changed_single(self, gradient: Params, place: Place) -> Params:
        if not self._acts_on(place):
            return gradient
        changed = self._changed({name: value.unsqueeze(0) for name, value in gradient.items()}, place)
        return {name: value.squeeze(0) for name, value in changed.items()}

    def _changed(self, gradients: Params, place: Place) -> Params:
        for defence, draw in zip(self.defences, self._generators, strict=True):
            if not isinstance(defence, GradientDefence) or defence.on != place:
                continue
            before, gradients = gradients, defence.on_gradients(gradients, draw)
            if _outline(gradients) != _outline(before):
                raise InvalidInput(
                    f"{defence!r} must return gradients with the names, shapes and types that it was given"
                )
        return gradients


def _outline(tensors: Params) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}


def check_defences(
    defences: Defence | Iterable[Defence], model: nn.Module, mode: Mode, *, server: bool = False
) -> tuple[Defence, ...]:
    """Return the defences as a tuple, or raise an error if a defence does not work with the other arguments.

    Args:
        defences: One defence, or several in the order in which they are applied.
        model: The model that the client trains.
        mode: The mode of the model during training, ``"train"`` or ``"eval"``.
        server: Whether several clients take part. A :class:`ServerDefence` needs several clients.
    """
    if isinstance(defences, str) or not isinstance(defences, (Defence, Iterable)):
        raise InvalidInput(_not_a_defence(defences))
    chain = (defences,) if isinstance(defences, Defence) else tuple(defences)
    for defence in chain:
        if not isinstance(defence, (RecipeDefence, BatchDefence, GradientDefence, TrainingDefence, ServerDefence)):
            raise InvalidInput(_not_a_defence(defence))
        if isinstance(defence, ServerDefence) and not server:
            raise InvalidInput(
                f"{defence!r} needs the messages of several clients. Use run_federation(), or combine messages with "
                "leakgauge.federation.aggregation.aggregate()."
            )
        if isinstance(defence, GradientDefence) and defence.on == "samples" and mode == "train":
            _check_sample_gradients(defence, model)
    _check_combination(chain)
    return chain


def _check_sample_gradients(defence: Defence, model: nn.Module) -> None:
    """Raise an error if the model mixes the samples of a batch, so that a sample has no gradient of its own."""
    layer = mixes_samples(model)
    if layer is not None:
        raise InvalidInput(
            f"{defence!r} acts on each sample's gradient, which does not exist with batch norm in train mode "
            f"(layer {layer!r}), because batch statistics mix the samples. Use mode='eval', or group norm in the model."
        )


def _check_combination(chain: tuple[Defence, ...]) -> None:
    """Raise an error if two defences do not work together."""
    trainings = [defence for defence in chain if isinstance(defence, TrainingDefence)]
    if len(trainings) > 1:
        raise InvalidInput(
            f"{trainings[0]!r} and {trainings[1]!r} both replace the local training. Choose one of them."
        )
    for defence in chain:
        if trainings and isinstance(defence, GradientDefence) and defence.on != "update":
            raise InvalidInput(
                f"{trainings[0]!r} replaces the local training, so {defence!r} has no gradients to act on. "
                "Use it with on='update', or remove one of them."
            )


def recipe_with(defences: Sequence[Defence], training: LocalTraining) -> LocalTraining:
    """Return the training settings that a client uses with the given defences."""
    for defence in defences:
        if isinstance(defence, RecipeDefence):
            training = defence.on_recipe(training)
    return training


def clients_in_a_sum(defences: Sequence[Defence]) -> int:
    """Return the smallest number of clients in one sum of messages, or 1 if the server gets every message."""
    return max((defence.clients for defence in defences if isinstance(defence, ServerDefence)), default=1)


def training_of(defences: Sequence[Defence]) -> TrainingDefence | None:
    """Return the defence that replaces the local training, or ``None`` if there is none."""
    return next((defence for defence in defences if isinstance(defence, TrainingDefence)), None)


def _not_a_defence(value: object) -> str:
    return f"defences must be objects such as leakgauge.defences.GaussianNoise(0.01), not {value!r}"


def mixes_samples(model: nn.Module) -> str | None:
    """Return the name of the first layer that computes or stores batch statistics, or ``None`` if no layer does."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
            return str(name)
    return None
