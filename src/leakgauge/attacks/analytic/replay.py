"""The client's message, computed again from one rebuilt sample, and its distance from the observed message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.inversion.labels import granted_labels
from leakgauge.attacks.inversion.last_layer import last_layer
from leakgauge.attacks.inversion.smoothness import forward_pass
from leakgauge.attacks.inversion.update_models import simulator
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation, draws_masks
from leakgauge.core.params import Params, subtract

#: The largest relative distance of a replayed message that counts as the same message. The client's own gradient has a
#: relative rounding error of about 1e-6 in single precision.
SAME_MESSAGE = 1e-4
#: The largest such distance for returned weights, whose rounding may be larger than small updates.
SAME_ROUNDED = 1e-2
#: The largest number of multiplications in a replay, which is some half a minute on one core.
MOST_WORK = 1_000_000_000_000


@dataclass(frozen=True, eq=False)
class Replay:
    """A replayed message, or the reason why the message cannot be replayed.

    Args:
        residual: The distance from the observed message, as a share of its length.
        limit: The largest distance that counts as the same message.
        label: The label with which the message was replayed.
        message: The replayed message, in the units of ``Observation.difference``.
        reason: The reason why the message cannot be replayed. The text is empty if it was replayed.
    """

    residual: float = math.inf
    limit: float = SAME_MESSAGE
    label: Tensor | None = None
    message: Params | None = None
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the replayed message is the observed message, or no message can be replayed."""
        return bool(self.reason) or self.residual <= self.limit

    def __str__(self) -> str:
        if self.reason:
            return f"not checked by a replay, since {self.reason}"
        words = "a replay gives the same message" if self.agrees else "a replay gives another message"
        return f"{words} (relative distance {self.residual:.1g})"


def replay(observation: Observation, sample: Tensor) -> Replay:
    """Compute the message of a client that has one given sample, and compare it with the observed message.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        sample: The rebuilt sample in the model's units.
    """
    reason = _why_not(observation)
    labels = [] if reason else _possible_labels(observation)
    if not reason and not labels:
        reason = "the label of the sample is unknown"
    if reason:
        return Replay(reason=reason)
    observed, limit = observation.difference(), _limit(observation)
    inputs = sample.reshape(1, *observation.data.shape).to(next(iter(observation.sent.values())))
    replays = []
    for label in labels:
        message = message_of(observation, inputs, label)
        replays.append(Replay(_distance(observed, message), limit, label, message))
    return min(replays, key=lambda one: one.residual)


def message_of(observation: Observation, inputs: Tensor, label: Tensor, *, one_gradient: bool = False) -> Params:
    """Return the message of a client with one sample, in the units of ``Observation.difference``.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        inputs: The sample in the model's units, as a batch of one.
        label: The label of the sample, as a batch of one.
        one_gradient: Whether to return the gradient at the sent weights, also for a client that sends weights.
    """
    trainer = simulator(observation, observation.training, functional=False)
    state = trainer.start(observation.sent, observation.model_buffers())
    if one_gradient or observation.kind == "gradient":
        with trainer.active():
            return trainer.gradient(state, (inputs, label), graph=False)[0]
    batches = int(observation.training.need("epochs"))
    return subtract(dict(observation.sent), trainer.run(state, [(inputs, label)] * batches).weights)


def label_of_one(observation: Observation) -> Tensor | None:
    """Return the label of the only sample, which is given or read from the last layer (Zhao et al. 2020).

    The result is ``None`` if the label cannot be inferred.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    labels = _possible_labels(observation)
    return labels[0] if len(labels) == 1 else None


def _possible_labels(observation: Observation) -> Sequence[Tensor]:
    r"""Return the labels that the only sample may have.

    The gradient at the outputs is negative at the sample's class only, and adds up to zero. The bias shows it. Without
    a bias, the row of the sample's class is the longest in the gradient of the last kernel. Two classes have rows of
    the same length.
    """
    labels = granted_labels(observation)
    if labels is not None:
        return [labels[:1]]
    try:
        reading = last_layer(observation)
    except MissingKnowledge:
        return []
    difference = observation.difference()
    if reading.part == "bias":
        return [reading.values(difference).argmin().reshape(1)]
    lengths = reading.rows(difference).norm(dim=1)
    if len(lengths) == 2:
        return [lengths.new_tensor([number], dtype=torch.long) for number in (0, 1)]
    return [lengths.argmax().reshape(1)]


def _why_not(observation: Observation) -> str:
    """Return the reason why the message cannot be replayed, or the empty text."""
    training = observation.training
    if training.samples != 1:
        return "there is not just one sample"
    if training.mode == "train" and any(draws_masks(module) for module in observation.model.modules()):
        return "its dropout is random"
    if observation.kind == "gradient":
        return ""
    missing = [name for name in ("epochs", "lr", "momentum", "weight_decay") if getattr(training, name) is None]
    if missing:
        return f"the client's {missing[0]} is unknown"
    work = int(training.need("epochs")) * work_of_gradient(observation)
    return f"the local steps need {work / 1e9:,.0f} billion multiplications" if work > MOST_WORK else ""


def work_of_gradient(observation: Observation) -> int:
    """Return the rough number of multiplications in the gradient of one sample.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    return 3 * forward_pass(observation).operations


def _limit(observation: Observation) -> float:
    """Return the largest relative distance that counts as the same message."""
    if observation.returned is None:
        return SAME_MESSAGE
    steps = {name: torch.finfo(value.dtype).eps / 4 for name, value in observation.returned.items()}
    rounding = sum(float((steps[name] * value).square().sum()) for name, value in observation.returned.items())
    update = sum(float(value.square().sum()) for value in observation.difference().values())
    return min(max(SAME_MESSAGE, 4 * math.sqrt(rounding / update)), SAME_ROUNDED) if update else SAME_MESSAGE


def _distance(observed: Params, message: Params) -> float:
    """Return the relative distance of two messages. A factor between them does not count, since clients may clip."""
    pairs = [(value.double().flatten(), message[name].double().flatten()) for name, value in observed.items()]
    square, product, length = (
        sum(float(one @ other) for one, other in chosen)
        for chosen in ([(m, m) for _, m in pairs], pairs, [(o, o) for o, _ in pairs])
    )
    if not square or not length or product <= 0:
        return math.inf
    rest = sum(float((seen - product / square * made).square().sum()) for seen, made in pairs)
    return math.sqrt(rest / length)
