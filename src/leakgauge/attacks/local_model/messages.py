"""The messages of one client over many rounds, as matrices and gradients.

Every attack on a client's local model, on a hidden attribute or on the source of a record starts from these matrices or
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly
from leakgauge.core.params import Params, flatten
from leakgauge.federation.training import LOSSES, in_mode


@dataclass(frozen=True, eq=False)
class Messages:
    r"""The messages of one client as two matrices, which have one row for each round.

    The matrices are :math:`\Delta M_c` of LMRA (algorithm 2, line 1).

    Use :meth:`read` to create an object.

    Args:
        observations: The client's observations, sorted by round.
        sent: The models that the server sent, (rounds, parameters).
        updates: The updates that the client adds to these models, (rounds, parameters). An update is
            ``returned - sent``, or the negative gradient.
    """

    observations: tuple[Observation, ...]
    sent: Tensor
    updates: Tensor

    @classmethod
    def read(cls, observations: Sequence[Observation]) -> Messages:
        """Check that all observations are rounds of the same client, and stack the observations as matrices."""
        if isinstance(observations, Observation) or not isinstance(observations, Sequence):
            raise InvalidInput("this attack takes a list of observations, one for each round of the same client")
        if not observations:
            raise InvalidInput("there are no observations; record the client for some rounds first")
        rounds = tuple(sorted(observations, key=lambda observation: observation.round))
        for observation in rounds[1:]:
            _check_same_client(rounds[0], observation)
        sent = torch.stack([flatten(observation.sent) for observation in rounds])
        return cls(rounds, sent, -torch.stack([flatten(observation.difference()) for observation in rounds]))

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def last(self) -> Observation:
        """The observation of the last round."""
        return self.observations[-1]

    def unflatten(self, vector: Tensor) -> Params:
        """Convert a vector to the model's weights. Each weight keeps its data type."""
        weights, start = {}, 0
        for name, value in self.last.sent.items():
            weights[name] = vector[start : start + value.numel()].reshape(value.shape).to(value.dtype)
            start += value.numel()
        return weights


def _check_same_client(first: Observation, other: Observation) -> None:
    if other.client != first.client:
        raise InvalidInput(
            f"these are messages of {first.client!r} and of {other.client!r}; pass the rounds of one client"
        )
    if other.kind != first.kind:
        raise InvalidInput("some of these rounds are gradients and some are weights; pass rounds of one kind")
    if _shapes(other.sent) != _shapes(first.sent):
        raise InvalidInput(
            f"the model of round {other.round} differs in its layers from that of round {first.round}; pass rounds of "
            "one model"
        )


def _shapes(tensors: Params) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def steps_in(observation: Observation) -> int | None:
    """Return the number of local steps in a round, or ``None`` if the training settings are unknown."""
    training = observation.training
    if observation.kind == "gradient":
        return 1
    if None in (training.epochs, training.batch_size, training.samples):
        return None
    return training.steps


def points_of(messages: Messages) -> Tensor:
    """Return, for each round, the weights to which the client's mean gradient belongs, (rounds, parameters).

    If a round is one step, these are the weights that the server sent. Otherwise, they lie half way between the sent
    and the returned weights.
    """
    return messages.sent if steps_in(messages.last) == 1 else messages.sent + messages.updates / 2


def step_length_of(observation: Observation) -> float | None:
    """Return the length of a round along the client's mean gradient, or ``None`` if it is unknown.

    For plain SGD, this is the learning rate times the number of local steps. Momentum and a schedule change it
    (:attr:`~leakgauge.core.local_training.LocalTraining.applied_gradients`). With Adam, it is unknown.
    """
    if observation.kind == "gradient":
        return 1.0
    training = observation.training
    if steps_in(observation) is None or training.lr is None or not mixes_linearly(observation):
        return None
    return training.lr * training.applied_gradients


def gradients_of(messages: Messages) -> tuple[Tensor, bool]:
    """Return the client's mean gradient of each round, (rounds, parameters), and whether the gradients' scale is known.

    The scale follows from the client's learning rate, momentum and number of local steps. If one of these is unknown,
    only the direction of the gradients is right. If the client uses Adam, even the direction is approximate.
    """
    length = step_length_of(messages.last)
    return (-messages.updates, False) if not length else (-messages.updates / length, True)


def weight_updates_of(messages: Messages) -> Tensor:
    """Return the client's updates as changes of the weights, (rounds, parameters).

    If the messages are gradients, the server's learning rate converts them to changes of the weights.
    """
    if messages.last.kind == "weights":
        return messages.updates
    if messages.last.training.lr is None:
        raise MissingKnowledge(
            "these rounds are gradients, and the length of the server's step along them is unknown; supply the "
            "learning rate with observation.knowing(lr=...)"
        )
    return messages.updates * float(messages.last.training.lr)


def losses_of(observation: Observation, weights: Params, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the client's loss of each record, (N,).

    Args:
        observation: A message of the client. It holds the architecture, the loss and the mode.
        weights: The weights of the model for which the loss is computed.
        inputs: The records, normalised for the model.
        targets: The targets of the records.
    """
    buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
    with in_mode(observation.model, observation.training.mode):
        outputs = functional_call(observation.model, {**weights, **buffers}, (inputs,))
    if observation.training.loss == "cross_entropy":
        return F.cross_entropy(outputs, targets, reduction="none")
    if observation.training.loss == "mse":
        errors: Tensor = outputs.reshape(targets.shape) - targets
        return errors.square()
    loss = LOSSES[observation.training.loss]
    return torch.stack([loss(output[None], target[None]) for output, target in zip(outputs, targets, strict=True)])


def stacked(rows: Tensor, like: Params) -> Params:
    """Convert one flat vector per round to named weights whose first dimension is the round.

    Args:
        rows: One flat vector of weights per round, (rounds, parameters).
        like: Weights with the names and shapes of the model.
    """
    sizes = [value.numel() for value in like.values()]
    parts = rows.split(sizes, dim=1)
    return {
        name: part.reshape(len(rows), *value.shape) for (name, value), part in zip(like.items(), parts, strict=True)
    }
