"""Sources of labels for an attack, which are given or inferred from the last layer of the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, get_args

import torch
from torch import Tensor

from leakgauge.attacks.inversion.label_counts import Place, estimate_label_counts, number_of_dummies, raise_counts
from leakgauge.attacks.inversion.last_layer import Part, last_layer
from leakgauge.attacks.inversion.probed_labels import infer_label_counts
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.observation import LABEL_FIELDS, Observation


class Labels(Protocol):
    """A source of labels for an attack."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return one label (or regression target) for each of the client's samples.

        If the attacker is given the labels of every batch, the result has one label for each sample of each epoch, one
        epoch after another.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        ...


@dataclass(frozen=True)
class Granted:
    """A source of labels for an attacker who is given labels, label counts or the labels of every batch."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the labels that the attacker is given. Label counts are converted to labels, class by class."""
        labels = granted_labels(observation)
        if labels is None:
            raise MissingKnowledge(
                "this attack needs the client's labels, which this observation does not grant. "
                "Supply them with observation.knowing(labels=...), or choose an attack that infers them"
            )
        return labels


@dataclass(frozen=True)
class LastLayer:
    """A method that returns the labels that are given, or infers labels from the last layer's update.

    If the loss or the last layer allows no formula, labels are inferred from the gradients that dummy inputs of each
    class cause (:mod:`leakgauge.attacks.inversion.probed_labels`).

    Args:
        at: The weights at which random dummy inputs are evaluated to estimate mean predictions. ``"server"`` are the
            sent weights, ``"client"`` the returned weights, and ``"interpolated"`` interpolates between both.
        read: The part of the last layer from which labels are inferred, ``"bias"`` or ``"kernel"``. By default, the
            bias if the layer has one, and otherwise the kernel.
        dummies: The number of random dummy inputs. By default, 1000 for small samples, and less for large ones
            (:func:`~leakgauge.attacks.inversion.label_counts.number_of_dummies`).
        shuffle: Whether the labels are put into a random order (DLF's RandOrder). If the attacker is given the labels
            of every batch, these labels keep their order (appendix B.3).
    """

    at: Place = "interpolated"
    read: Part | None = None
    dummies: int | None = None
    shuffle: bool = False

    def __post_init__(self) -> None:
        if self.dummies is not None:
            whole_number("dummies", self.dummies)
        if self.at not in get_args(Place):
            raise UnknownName("place to take statistics", self.at, get_args(Place))
        if self.read is not None and self.read not in get_args(Part):
            raise UnknownName("part of the last layer", self.read, get_args(Part))

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the given or inferred labels.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        labels = granted_labels(observation)
        if labels is None:
            counts = infer_label_counts(observation, generator, at=self.at, read=self.read, dummies=self.dummies)
            labels = torch.repeat_interleave(torch.arange(len(counts)), counts).to(observation.device)
        if self.shuffle and observation.label_batches is None:
            labels = labels[torch.randperm(len(labels), generator=generator).to(labels.device)]
        return labels


@dataclass(frozen=True)
class MostNegative:
    r"""A method that returns the labels that are given, or else the classes with the most negative gradients.

    Each class has one row in the gradient of the last kernel. The classes are sorted by the smallest entry of their
    rows. For :math:`N` samples, the method takes the first :math:`N` classes (Yin et al. 2021, equation 7, as in AGIC):

    .. math:: \hat y = \arg\mathrm{sort}_k \Big(\min_j \partial\ell / \partial W_{kj}\Big)_{[:N]}

    After ReLU, the inputs of the last layer are not negative. Only a class with samples in the batch can then have a
    negative entry.

    Args:
        distinct: Whether the attack assumes that all labels of a batch differ, as in the paper. Otherwise each class
            with a negative entry gets one sample. The remaining samples go to the classes whose counts so far are
            furthest below the estimated counts.
        dummies: The number of random dummy inputs with which the counts are estimated. The default is that of
            :class:`LastLayer`.
    """

    distinct: bool = False
    dummies: int | None = None

    def __post_init__(self) -> None:
        if self.dummies is not None:
            whole_number("dummies", self.dummies)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the given or inferred labels.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        labels = granted_labels(observation)
        if labels is not None:
            return labels
        samples = int(observation.training.need("samples"))
        lowest = last_layer(observation, "kernel").rows(observation.difference()).amin(1)
        order = lowest.argsort(stable=True)
        if self.distinct:
            if samples > len(order):
                raise InvalidInput(
                    f"{samples} samples cannot have distinct labels of {len(order)} classes. Use distinct=False"
                )
            return order[:samples]
        counts = torch.zeros(len(order), dtype=torch.long)
        counts[order[: min(samples, max(1, int((lowest < 0).sum())))].cpu()] = 1
        estimate = estimate_label_counts(observation, generator, dummies=self.dummies)
        counts = raise_counts(counts, estimate, samples)
        return torch.repeat_interleave(torch.arange(len(counts)), counts).to(observation.device)


def dummies_for(labels: Labels, observation: Observation) -> int:
    """Return the number of random dummy inputs from which labels are inferred. It is 0 if labels are given.

    Args:
        labels: The source of labels.
        observation: The client's message (gradient or weights), as the server sees it.
    """
    source = getattr(labels, "first", labels)  # the first estimate of labels that are corrected later
    given = any(getattr(observation, name) is not None for name in LABEL_FIELDS)
    if given or not hasattr(source, "dummies"):
        return 0
    return number_of_dummies(observation.data.shape, source.dummies)


def granted_labels(observation: Observation) -> Tensor | None:
    """Return the labels that the attacker is given, or ``None`` if no labels are given.

    If the labels of every batch are given, they are returned in the order of training, one epoch after another.
    Otherwise the labels are in no particular order.
    """
    if observation.label_batches is not None:
        return observation.label_batches.flatten().long()
    if observation.labels is not None:
        return observation.labels if observation.data.classes is None else observation.labels.long()
    if observation.label_counts is not None:
        counts = observation.label_counts.long()
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return None


def rows_of_first_epoch(labels: Tensor) -> Tensor:
    """Match the samples of every epoch to samples of the first epoch by their labels.

    The result holds, for each position in each epoch, a position in the first epoch with the same label. Within an
    epoch, no position of the first epoch is used twice. Labels cannot distinguish samples with the same label, so these
    samples keep their order.

    Args:
        labels: The labels of all epochs, (epochs, samples). Every epoch has the same labels in any order.
    """
    order = labels.argsort(dim=1, stable=True)
    return torch.empty_like(order).scatter_(1, order, order[:1].expand_as(order))
