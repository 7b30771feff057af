"""The visibility of a malicious server to the client that it steers.

A client can notice two things without any help. The loss of the weights that it gets falls below the loss of an honest
model, because the server trains for this client alone. And the weights differ from those that other clients get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from leakgauge.attacks.local_model import GlobalModel
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, flatten
from leakgauge.core.truth import Truth


@dataclass(frozen=True)
class Visibility:
    """The changes that a steered client could notice in each steered round.

    Args:
        rounds: The indices of the steered rounds.
        losses: The client's loss of the weights that it got, before it trains.
        honest_loss: The client's loss of the weights that an honest server would have sent.
        distances: The distance between the weights that it got and the honest weights, as a share of the length of the
            honest weights.
    """

    rounds: tuple[int, ...]
    losses: tuple[float, ...]
    honest_loss: float
    distances: tuple[float, ...]

    def __str__(self) -> str:
        return (
            f"In {len(self.rounds)} steered rounds, the client's loss of the weights that it got went from "
            f"{self.losses[0]:.3g} to {self.losses[-1]:.3g} (honest weights: {self.honest_loss:.3g}). They ended at a "
            f"distance of {self.distances[-1]:.1%} from the honest weights."
        )


def visibility(rounds: Sequence[Observation], honest: Params, truth: Truth) -> Visibility:
    """Measure how visible a malicious server is to a client.

    Args:
        rounds: The client's messages. Rounds without steering are left out.
        honest: The weights that an honest server would send, such as those of the federation's last honest round.
        truth: The client's samples.
    """
    steered = [observation for observation in rounds if observation.steered]
    if not steered:
        raise InvalidInput("no round was steered by a malicious server, so there is nothing to see")
    steered.sort(key=lambda observation: observation.round)
    like = flatten(steered[0].sent)
    target = flatten({name: honest[name] for name in steered[0].sent}).to(like)
    length = float(target.norm())
    distances = [float((flatten(observation.sent) - target).norm()) / length for observation in steered]
    first = steered[0]
    return Visibility(
        rounds=tuple(observation.round for observation in steered),
        losses=tuple(_loss(observation, observation.sent, truth) for observation in steered),
        honest_loss=_loss(first, honest, truth),
        distances=tuple(distances),
    )


def _loss(observation: Observation, weights: Params, truth: Truth) -> float:
    """Return the mean loss of a model on the client's samples."""
    message = replace(observation, sent=weights)
    model = GlobalModel()([message], progress=False)
    with torch.no_grad():
        return float(model.losses(truth.inputs, truth.targets).mean())
