"""What a client may do to protect its samples, and where in its round it does so.

The place at which a defence acts is the class that it derives from; a defence that acts at two derives from both.

=========================  ====================================================================================
place                      what it is given
=========================  ====================================================================================
:class:`RecipeDefence`     the recipe, before training: larger batches, more local epochs
:class:`BatchDefence`      at each local step the batch, before the network sees it
:class:`GradientDefence`   gradients: of every sample of a batch (``on="samples"``), of the batch (``"gradient"``), at
                           each local step; or what is sent in the end (``"update"``)
:class:`TrainingDefence`   the whole local training, which it does in its own way
:class:`ServerDefence`     the messages of several clients, of which the server sees the mean alone
=========================  ====================================================================================

A client uses several in the order given: ``fedavg(..., defences=(RandomPruning(0.2), GaussianNoise(0.01)))``. Each
draws its random numbers from a generator of its own, derived from the client's seed, so that neither another
defence nor training with others at once changes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

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
    """Something that a client does to protect its samples; derive from the class of the place where it acts.

    Subclasses are frozen dataclasses: their fields are the settings, refused in ``__post_init__`` where they
    cannot work, and their ``repr`` is the record that goes into observations and reports.
    """


class RecipeDefence(Defence, ABC):
    """A defence that changes how the client trains."""

    @abstractmethod
    def on_recipe(self, training: LocalTraining) -> LocalTraining:
        """The recipe that the client follows instead of this one."""


class BatchDefence(Defence, ABC):
    """A defence that acts on each batch before the network sees it."""

    @abstractmethod
    def on_batch(self, batch: Batch, classes: int | None, draw: torch.Generator) -> Batch:
        """The batch that the client trains on instead: inputs as the network takes them, and targets.

        Targets of a classification (``classes`` of them) may become shares of each class, (samples, classes).
        """


@dataclass(frozen=True)
class GradientDefence(Defence, ABC):
    """A defence that acts on gradients, ``on`` one of three places.

    On ``"samples"`` training takes the memory of one gradient a sample of the batch, and cannot use batch norm in
    train mode. The ``"update"`` is the gradient that is sent, or the difference between the weights that were sent to
    the client and those that it returns.
    """

    on: Place = field(default="samples", kw_only=True)

    def __post_init__(self) -> None:
        if self.on not in get_args(Place):
            raise UnknownName("place for a defence to act on", self.on, get_args(Place))

    @abstractmethod
    def on_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """What the client goes on with instead of these gradients, of the same names, shapes and type.

        The first dimension of each tensor counts the gradients: the samples of a batch, or one. Each is to be
        protected by itself. Parameters that the model does not use have a gradient of zeros, and are protected like
        the others. ``draw`` is on the CPU.
        """


@dataclass(frozen=True, eq=False)
class Trained:
    """What a local training gave: the rows of the samples at each step, the weights and the buffers after it."""

    order: tuple[Tensor, ...]
    weights: Params
    buffers: Params


class TrainingDefence(Defence, ABC):
    """A defence that does the whole local training in its own way."""

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
        """Train from the weights and buffers of ``start``; the client takes part in so many rounds (``participations``) in all.

        ``on_batch`` is what defences on batches make of one.
        """

    @abstractmethod
    def gradient(
        self, model: nn.Module, samples: Batch, training: LocalTraining, start: Trained, participations: int, seed: int
    ) -> Params:
        """One gradient of all samples at the weights of ``start``, for FedSGD."""

    @abstractmethod
    def check(self, model: nn.Module, training: LocalTraining) -> None:
        """Refuse a model or a recipe that it cannot train, before any work starts."""

    def spent(self, training: LocalTraining, participations: int = 1, *, planned: int | None = None) -> float | None:
        """The epsilon that a client has spent after so many rounds of those ``planned``; ``None``: no guarantee."""
        return None


class ServerDefence(Defence, ABC):
    """A defence between the clients and the server, which sees only the mean over at least ``clients`` messages."""

    clients: int

    @abstractmethod
    def check(self, messages: int) -> None:
        """Refuse a number of messages that is too small to hide one of them."""


class Protection:
    """One client's defences in their order, each with random numbers of its own."""

    def __init__(self, defences: Sequence[Defence], seed: int, classes: int | None = None) -> None:
        self._all = [(one, generator(seed, "defence", position)) for position, one in enumerate(defences)]
        self.classes = classes

    @property
    def needs_sample_gradients(self) -> bool:
        """Whether a defence acts on the gradient of each sample."""
        return any(isinstance(one, GradientDefence) and one.on == "samples" for one, _ in self._all)

    @property
    def acts_on_steps(self) -> bool:
        """Whether a defence acts on the gradients of batches, or does the training itself."""
        return any(
            isinstance(one, TrainingDefence) or (isinstance(one, GradientDefence) and one.on == "gradient")
            for one, _ in self._all
        )

    def on_batch(self, batch: Batch) -> Batch:
        """The batch that the network is given."""
        for defence, draw in self._all:
            if isinstance(defence, BatchDefence):
                batch = defence.on_batch(batch, self.classes, draw)
        return batch

    def mean_gradient(self, gradients: Params) -> Params:
        """The batch's gradient: the mean of its samples' gradients after the defences, then those on the mean."""
        changed = self._changed(gradients, "samples")
        return self.on_gradient({name: value.mean(0) for name, value in changed.items()})

    def on_gradient(self, gradient: Params) -> Params:
        """The batch's gradient that the client goes along."""
        return self._on_one(gradient, "gradient")

    def on_update(self, update: Params) -> Params:
        """What is sent."""
        return self._on_one(update, "update")

    def _on_one(self, gradient: Params, place: Place) -> Params:
        if not any(isinstance(one, GradientDefence) and one.on == place for one, _ in self._all):
            return gradient
        changed = self._changed({name: value.unsqueeze(0) for name, value in gradient.items()}, place)
        return {name: value.squeeze(0) for name, value in changed.items()}

    def _changed(self, gradients: Params, place: Place) -> Params:
        for defence, draw in self._all:
            if not isinstance(defence, GradientDefence) or defence.on != place:
                continue
            before, gradients = gradients, defence.on_gradients(gradients, draw)
            if _outline(gradients) != _outline(before):
                raise InvalidInput(
                    f"{defence!r} must give back gradients of the names, shapes and type that it was given"
                )
        return gradients


def _outline(tensors: Params) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}


def check_defences(
    defences: Defence | Iterable[Defence], model: nn.Module, mode: Mode, *, server: bool = False
) -> tuple[Defence, ...]:
    """The defences as a tuple; refused before any work starts if they are none, or this model cannot use them.

    Defences between clients and the ``server`` need several clients.
    """
    if isinstance(defences, str) or not isinstance(defences, (Defence, Iterable)):
        raise InvalidInput(_no_defence(defences))
    chain = (defences,) if isinstance(defences, Defence) else tuple(defences)
    places = (RecipeDefence, BatchDefence, GradientDefence, TrainingDefence, ServerDefence)
    for defence in chain:
        if not isinstance(defence, places):
            raise InvalidInput(_no_defence(defence))
        if isinstance(defence, ServerDefence) and not server:
            raise InvalidInput(
                f"{defence!r} needs the messages of several clients; use it in run_federation(), or put several "
                "together with leakgauge.federation.aggregation.aggregate()"
            )
        on_samples = isinstance(defence, GradientDefence) and defence.on == "samples"
        if on_samples and mode == "train" and (name := mixes_samples(model)) is not None:
            raise InvalidInput(
                f"{defence!r} acts on each sample's gradient, which does not exist with batch norm in train mode "
                f"({name!r}): its statistics mix the samples of a batch; use mode='eval', or group norm in the model"
            )
    _check_together(chain)
    return chain


def _check_together(chain: tuple[Defence, ...]) -> None:
    """Refuse a chain whose parts get into each other's way."""
    trainings = [one for one in chain if isinstance(one, TrainingDefence)]
    if len(trainings) > 1:
        raise InvalidInput(f"{trainings[0]!r} and {trainings[1]!r} both do the local training; choose one of them")
    for one in chain:
        if trainings and isinstance(one, GradientDefence) and one.on != "update":
            raise InvalidInput(
                f"{trainings[0]!r} does the local training by itself, and leaves {one!r} no gradients to act on; "
                "let that act on='update', or leave one of them out"
            )


def recipe_with(defences: Sequence[Defence], training: LocalTraining) -> LocalTraining:
    """The recipe that a client follows with these defences."""
    for defence in defences:
        if isinstance(defence, RecipeDefence):
            training = defence.on_recipe(training)
    return training


def clients_in_a_sum(defences: Sequence[Defence]) -> int:
    """Over how many clients the server sees a mean at least; 1 where it sees every message."""
    return max((one.clients for one in defences if isinstance(one, ServerDefence)), default=1)


def training_of(defences: Sequence[Defence]) -> TrainingDefence | None:
    """The defence that does the local training, if one does."""
    return next((one for one in defences if isinstance(one, TrainingDefence)), None)


def _no_defence(thing: object) -> str:
    return f"a client's defences are such as leakgauge.federation.defences.GaussianNoise(0.01), not {thing!r}"


def mixes_samples(model: nn.Module) -> str | None:
    """The first layer that takes or keeps statistics over a batch."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
            return str(name)
    return None
