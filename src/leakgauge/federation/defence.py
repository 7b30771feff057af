"""The base classes of defences, one for each place in a client's round where a defence can act.

A defence derives from the class of its place. A defence that acts at two places derives from both classes.

=========================  ====================================================================================
class                      place
=========================  ====================================================================================
:class:`RecipeDefence`     before training: it changes the recipe, such as the batch size or the epochs
:class:`BatchDefence`      at each local step: it changes the batch before the network gets it
:class:`GradientDefence`   it changes gradients: of each sample of a batch (``on="samples"``) or of the batch
                           (``on="gradient"``) at each local step, or the update that is sent (``on="update"``)
:class:`TrainingDefence`   it replaces the whole local training
:class:`ServerDefence`     between clients and server: the server gets only the mean of several messages
=========================  ====================================================================================

A client applies several defences in the order given: ``fedavg(..., defences=(RandomPruning(0.2),
GaussianNoise(0.01)))``. Each defence draws from its own random generator, derived from the client's seed. Its random
numbers therefore do not depend on the other defences, nor on whether clients are trained together.
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
    """Something that a client does to protect its samples. Derive from the class of the place where it acts.

    Subclasses are frozen dataclasses. Their fields are the settings, and ``__post_init__`` refuses settings that
    cannot work. Their ``repr`` is the record that observations and reports hold.

    Attributes:
        name: The name in configuration files and on the command line. A class in the package
            :mod:`leakgauge.federation.defences` that sets it is registered under this name.
    """

    name: ClassVar[str] = ""


class RecipeDefence(Defence, ABC):
    """A defence that changes the client's training recipe."""

    @abstractmethod
    def on_recipe(self, training: LocalTraining) -> LocalTraining:
        """Return the recipe that the client follows instead of ``training``."""


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

    Args:
        on: The gradients that it changes. ``"samples"`` is the gradient of each sample at each local step. It takes
            the memory of one gradient for each sample of a batch, and does not work with batch norm in train mode.
            ``"gradient"`` is the gradient of the batch at each local step. ``"update"`` is what the client sends: its
            gradient, or the difference between the weights it got and the weights it returns.
    """

    on: Place = field(default="samples", kw_only=True)

    def __post_init__(self) -> None:
        if self.on not in get_args(Place):
            raise UnknownName("place for a defence to act on", self.on, get_args(Place))

    @abstractmethod
    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """Return the gradients that the client uses instead, with the same names, shapes and types.

        Args:
            gradients: The gradients by parameter. The first dimension of each tensor counts the gradients: the
                samples of a batch, or one. Each gradient is protected separately. Parameters that the model does not
                use have a gradient of zeros and are protected like the others.
            draw: The random generator of this defence, on the CPU.
        """


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a local training.

    Args:
        order: The rows of the samples at each step.
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
        """Train one client.

        Args:
            model: The architecture.
            samples: All of the client's samples and targets, normalised.
            training: The recipe.
            start: The weights and buffers to start from.
            participations: The rounds in which the client takes part overall.
            seed: The seed of the client's random numbers.
            on_batch: The function that applies the client's batch defences to a batch.
        """

    @abstractmethod
    def gradient(
        self, model: nn.Module, samples: Batch, training: LocalTraining, start: Trained, participations: int, seed: int
    ) -> Params:
        """Return one gradient of all samples at the weights of ``start``, for FedSGD."""

    @abstractmethod
    def check(self, model: nn.Module, training: LocalTraining) -> None:
        """Refuse a model or a recipe that it cannot train."""

    def spent(self, training: LocalTraining, participations: int = 1, *, planned: int | None = None) -> float | None:
        """Return the epsilon that a client has spent, or ``None`` where the defence guarantees nothing.

        Args:
            training: The client's recipe.
            participations: The rounds in which the client has taken part.
            planned: The rounds over which the budget is spread. ``None`` means ``participations``.
        """
        return None


class ServerDefence(Defence, ABC):
    """A defence between clients and server. The server gets only the mean over at least ``clients`` messages."""

    clients: int

    @abstractmethod
    def check(self, messages: int) -> None:
        """Refuse a number of messages that is too small to hide a single message."""


class Protection:
    """The defences of one client, each with its own random generator.

    Args:
        defences: The defences, in their order.
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
        """Whether a defence acts on the gradients of batches or replaces the training."""
        return training_of(self.defences) is not None or self._acts_on("gradient")

    def on_batch(self, batch: Batch) -> Batch:
        """Return the batch that the network gets."""
        for defence, draw in zip(self.defences, self._generators, strict=True):
            if isinstance(defence, BatchDefence):
                batch = defence.on_batch(batch, self.classes, draw)
        return batch

    def mean_gradient(self, gradients: Params) -> Params:
        """Return the batch's gradient, given the gradients of its samples.

        Defences on samples come first, then the mean, then defences on the batch's gradient.
        """
        changed = self._changed(gradients, "samples")
        return self.on_gradient({name: value.mean(0) for name, value in changed.items()})

    def on_gradient(self, gradient: Params) -> Params:
        """Return the batch's gradient after the defences on it."""
        return self._changed_single(gradient, "gradient")

    def on_update(self, update: Params) -> Params:
        """Return the update after the defences on it. Without any, it is the same object."""
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
    """Return the defences as a tuple, and refuse those that do not work here.

    Args:
        defences: One defence or several, in their order.
        model: The model that the client trains.
        mode: Whether the model trains in train or in eval mode.
        server: Whether several clients take part, as a :class:`ServerDefence` needs.
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
    """Refuse a model for which the gradient of a single sample does not exist."""
    layer = mixes_samples(model)
    if layer is not None:
        raise InvalidInput(
            f"{defence!r} acts on each sample's gradient, which does not exist with batch norm in train mode "
            f"(layer {layer!r}), because batch statistics mix the samples. Use mode='eval', or group norm in the model."
        )


def _check_combination(chain: tuple[Defence, ...]) -> None:
    """Refuse defences that do not work together."""
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
    """Return the recipe that a client follows with these defences."""
    for defence in defences:
        if isinstance(defence, RecipeDefence):
            training = defence.on_recipe(training)
    return training


def clients_in_a_sum(defences: Sequence[Defence]) -> int:
    """Return the least number of clients in a mean that the server gets, or 1 where it gets single messages."""
    return max((defence.clients for defence in defences if isinstance(defence, ServerDefence)), default=1)


def training_of(defences: Sequence[Defence]) -> TrainingDefence | None:
    """Return the defence that replaces the local training, if there is one."""
    return next((defence for defence in defences if isinstance(defence, TrainingDefence)), None)


def _not_a_defence(value: object) -> str:
    return f"defences must be objects such as leakgauge.defences.GaussianNoise(0.01), not {value!r}"


def mixes_samples(model: nn.Module) -> str | None:
    """Return the name of the first layer that computes or stores statistics over a batch, if there is one."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
            return str(name)
    return None
