"""What a client may do to protect its samples, and where in its round it does so.

The place at which a defence acts is the class that it derives from; a defence that acts at two derives from both.

===============================  =============================================================================
place                            what it is given
===============================  =============================================================================
:class:`BatchDefence`            at each local step the batch, before anything is computed with it
:class:`SampleGradientDefence`   at each local step the gradient of every sample, before their mean is taken
===============================  =============================================================================

A client uses several in the order given: ``fedavg(..., defences=(RandomPruning(0.2), GaussianNoise(0.01)))``. Each
draws its random numbers from a generator of its own, derived from the client's seed, so that neither another
defence nor training with others at once changes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from leakscope.errors import InvalidInput
from leakscope.observation import Mode
from leakscope.params import Params
from leakscope.seeding import generator


@dataclass(frozen=True)
class Defence:
    """Something that a client does to protect its samples; derive from the class of the place where it acts.

    Subclasses are frozen dataclasses: their fields are the settings, refused in ``__post_init__`` where they
    cannot work, and their ``repr`` is the record that goes into observations and reports.
    """


class BatchDefence(Defence, ABC):
    """A defence that acts on the samples and targets of each batch, before a gradient is taken of them."""

    @abstractmethod
    def on_batch(self, inputs: Tensor, targets: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the client trains on instead of this batch, with as many samples.

        Inputs are on the model's side. Targets of a classification are shares of the classes, (samples, classes), so
        that they can be mixed. ``draw`` is on the CPU.
        """


class SampleGradientDefence(Defence, ABC):
    """A defence that acts on the gradient of each sample at each local step, before the batch's mean is taken.

    Training then takes the memory of one gradient a sample of the batch, and cannot use batch norm in train mode.
    """

    @abstractmethod
    def on_sample_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """What the client goes on with instead of these gradients, of the same names, shapes and type.

        The samples of the batch are along the first dimension of each tensor. Parameters that the model does not
        use have a gradient of zeros, and are protected like the others. ``draw`` is on the CPU.
        """


class Protection:
    """One client's defences in their order, each with random numbers of its own."""

    def __init__(self, defences: Sequence[Defence], seed: int) -> None:
        self._on_samples = [
            (defence, generator(seed, "defence", position))
            for position, defence in enumerate(defences)
            if isinstance(defence, SampleGradientDefence)
        ]
        self._on_batches = [
            (defence, generator(seed, "defence", position, "batch"))
            for position, defence in enumerate(defences)
            if isinstance(defence, BatchDefence)
        ]

    @property
    def changes_batches(self) -> bool:
        """Whether a defence acts on batches."""
        return bool(self._on_batches)

    def batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The batch after the defences."""
        for defence, draw in self._on_batches:
            shape, (inputs, targets) = inputs.shape, defence.on_batch(inputs, targets, draw)
            if inputs.shape != shape or len(targets) != len(inputs):
                raise InvalidInput(f"{defence!r} must give back as many samples, of the same shape, as it was given")
        return inputs, targets

    @property
    def needs_sample_gradients(self) -> bool:
        """Whether a defence acts on the gradient of each sample."""
        return bool(self._on_samples)

    def mean_gradient(self, gradients: Params) -> Params:
        """The batch's gradient: the mean of its samples' gradients after the defences."""
        for defence, draw in self._on_samples:
            before, gradients = gradients, defence.on_sample_gradients(gradients, draw)
            if _outline(gradients) != _outline(before):
                raise InvalidInput(
                    f"{defence!r} must give back gradients of the names, shapes and type that it was given"
                )
        return {name: value.mean(0) for name, value in gradients.items()}


def _outline(tensors: Params) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}


def check_defences(defences: Defence | Iterable[Defence], model: nn.Module, mode: Mode) -> tuple[Defence, ...]:
    """The defences as a tuple; refused before any work starts if they are none, or this model cannot use them."""
    if isinstance(defences, str) or not isinstance(defences, (Defence, Iterable)):
        raise InvalidInput(_no_defence(defences))
    chain = (defences,) if isinstance(defences, Defence) else tuple(defences)
    for defence in chain:
        if not isinstance(defence, (BatchDefence, SampleGradientDefence)):
            raise InvalidInput(_no_defence(defence))
        acts_on_samples = isinstance(defence, SampleGradientDefence)
        if acts_on_samples and mode == "train" and (name := _mixes_samples(model)) is not None:
            raise InvalidInput(
                f"{defence!r} acts on each sample's gradient, which does not exist with batch norm in train mode "
                f"({name!r}): its statistics mix the samples of a batch; use mode='eval', or group norm in the model"
            )
    return chain


def _no_defence(thing: object) -> str:
    return f"a client's defences are such as leakscope.defences.GaussianNoise(0.01), not {thing!r}"


def _mixes_samples(model: nn.Module) -> str | None:
    """The first layer that takes or keeps statistics over a batch."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
            return str(name)
    return None
