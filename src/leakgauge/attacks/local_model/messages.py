"""What an eavesdropper reads off many rounds of one client, and the model that it makes of them."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.params import Params, buffers_of, flatten
from leakgauge.core.progress import Report, progress_bar
from leakgauge.core.seeding import seeded
from leakgauge.federation.training import LOSSES, in_mode


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of one client as two matrices, one row a round: LMRA's :math:`\\Delta M_c` (algorithm 2, line 1).

    ``sent`` are the server's models, ``updates`` what the client adds to them: ``returned - sent``, or the negative
    gradient. Rounds are in their order.
    """

    observations: tuple[Observation, ...]
    sent: Tensor
    updates: Tensor

    @classmethod
    def read(cls, observations: Sequence[Observation]) -> Messages:
        """Check that these are rounds of one client, and stack them."""
        if isinstance(observations, Observation) or not isinstance(observations, Sequence):
            raise InvalidInput("a local model is rebuilt from a list of observations, one a round of the same client")
        if not observations:
            raise InvalidInput("there are no observations; watch the client for some rounds")
        rounds = tuple(sorted(observations, key=lambda one: one.round))
        first = rounds[0]
        for one in rounds[1:]:
            if one.client != first.client:
                raise InvalidInput(
                    f"these are messages of {first.client!r} and of {one.client!r}; give those of one client"
                )
            if one.kind != first.kind:
                raise InvalidInput("some of these rounds are gradients and some are weights; give rounds of one kind")
            if _outline(one.sent) != _outline(first.sent):
                raise InvalidInput(f"the model of round {one.round} is not that of round {first.round}")
        sent = torch.stack([flatten(one.sent) for one in rounds])
        return cls(rounds, sent, -torch.stack([flatten(one.difference()) for one in rounds]))

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def last(self) -> Observation:
        """The last round."""
        return self.observations[-1]

    def unflatten(self, vector: Tensor) -> Params:
        """A vector as the model's weights, in their own type."""
        weights, start = {}, 0
        for name, value in self.last.sent.items():
            weights[name] = vector[start : start + value.numel()].reshape(value.shape).to(value.dtype)
            start += value.numel()
        return weights


def steps_in(observation: Observation) -> int | None:
    """How many local steps a round has, if that is known."""
    training = observation.training
    if observation.kind == "gradient":
        return 1
    if None in (training.epochs, training.batch_size, training.samples):
        return None
    return training.steps


def points_of(messages: Messages) -> Tensor:
    """Where the client's mean gradients are taken: at the models sent, or half way to those returned."""
    return messages.sent if steps_in(messages.last) == 1 else messages.sent + messages.updates / 2


def gradients_of(messages: Messages) -> tuple[Tensor, bool]:
    """The client's mean gradient of each round, and whether its scale is right: that takes its lr and its steps."""
    last, steps = messages.last, steps_in(messages.last)
    lr = 1.0 if last.kind == "gradient" else last.training.lr
    if steps is None or lr is None:
        return -messages.updates, False
    return -messages.updates / (lr * steps), True


def losses_of(observation: Observation, weights: Params, inputs: Tensor, targets: Tensor) -> Tensor:
    """The client's loss of each record, (N,), at some weights; inputs are on the model's side."""
    buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
    with in_mode(observation.model, observation.training.mode):
        outputs = functional_call(observation.model, {**weights, **buffers}, (inputs,))
    if observation.training.loss == "cross_entropy":
        return F.cross_entropy(outputs, targets, reduction="none")
    if observation.training.loss == "mse":
        errors: Tensor = outputs.reshape(targets.shape) - targets
        return errors.square()
    loss = LOSSES[observation.training.loss]
    return torch.stack([loss(out[None], target[None]) for out, target in zip(outputs, targets, strict=True)])


def _outline(tensors: Params) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


@dataclass(frozen=True, eq=False)
class Found:
    """What a method makes of the messages: a vector of weights, and what can be said about it."""

    vector: Tensor
    outcome: str
    uncertainty: float | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A guess of the model that a client would have trained by itself. Call it with samples as a person sees them.

    ``uncertainty`` is the method's own estimate of its distance from the client's optimum, or ``None`` where it has
    none; ``outcome`` says in words what was found; ``figures`` hold what the method measured on the way. Where
    batch-norm statistics were withheld (``buffers`` is ``None``), those of the samples at hand are used.
    """

    model: nn.Module = field(repr=False)
    weights: Params = field(repr=False)
    buffers: Params | None = field(repr=False)
    data: DataSpec
    loss: str
    outcome: str
    uncertainty: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    client: str = "client"
    method: str = ""
    rounds: int = 1
    seconds: float = 0.0

    @property
    def state(self) -> Params:
        """Weights and buffers, to run the architecture with."""
        return {**self.weights, **(buffers_of(self.model) if self.buffers is None else self.buffers)}

    def __call__(self, samples: Tensor) -> Tensor:
        """The outputs of the model: class scores, or predictions of a regression."""
        like = next(iter(self.weights.values()))
        inputs = self.data.normalise(samples.to(like))
        with in_mode(self.model, "train" if self.buffers is None and self.has_statistics else "eval"):
            outputs: Tensor = functional_call(self.model, self.state, (inputs,))
        return outputs

    @property
    def has_statistics(self) -> bool:
        """Whether the architecture keeps statistics over batches."""
        return any(True for _ in self.model.buffers())

    def probabilities(self, samples: Tensor) -> Tensor:
        """What LMRA calls h: class probabilities (N, classes), or the predictions of a regression (N, 1)."""
        outputs = self(samples).reshape(len(samples), -1)
        if self.data.classes is None:
            return outputs
        if outputs.shape[1] == 1:
            positive = outputs.sigmoid()
            return torch.cat((1 - positive, positive), dim=1)
        return outputs.softmax(1)

    def losses(self, samples: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record by itself: cross-entropy of a class, squared error of a regression, (N,)."""
        if self.data.classes is None:
            outputs = self(samples)
            return (outputs.reshape(targets.shape) - targets.to(outputs)).square().reshape(len(samples), -1).mean(1)
        chances = self.probabilities(samples)
        return -chances.gather(1, targets.to(chances.device).unsqueeze(1)).squeeze(1).clamp_min(1e-30).log()


@dataclass(frozen=True)
class LocalModelAttack(ABC):
    """A way from many rounds of one client to its local model. Write :meth:`run`; calling it does the rest.

    Subclasses are frozen dataclasses: their fields are the configuration, their ``repr`` the record.
    """

    @final
    def __call__(
        self, observations: Sequence[Observation], *, seed: int = 0, progress: bool | Report | None = None
    ) -> LocalModel:
        """Rebuild the local model of the client whose rounds these are."""
        messages = Messages.read(observations)
        began = time.perf_counter()
        with (
            seeded(seed, "local model"),
            progress_bar(f"rebuilding the model of {messages.last.client}", progress) as report,
        ):
            found = self.run(messages, seed, report)
        if not bool(torch.isfinite(found.vector).all()):
            raise InvalidInput(f"{self!r} found NaN or Inf; the client's rounds are too noisy or too few for it")
        last = messages.last
        buffers = last.returned_buffers if last.returned_buffers is not None else last.buffers
        has_buffers = any(True for _ in last.model.buffers())
        return LocalModel(
            last.model,
            messages.unflatten(found.vector.detach()),
            ({} if not has_buffers else None) if buffers is None else buffers,
            last.data,
            last.training.loss,
            found.outcome,
            found.uncertainty,
            found.figures,
            last.client,
            repr(self),
            len(messages),
            time.perf_counter() - began,
        )

    @abstractmethod
    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """Rebuild the model. Torch's generators are seeded; ``report`` shows progress."""


def relative(part: float, whole: float) -> float:
    """A ratio that is infinite where the whole is zero."""
    return part / whole if whole > 0 else math.inf
