"""Checks of a rebuilt batch against the observed message, and the labels of its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from leakgauge.attacks.analytic.replay import message_of
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.observation import Observation
from leakgauge.core.params import flatten

#: The largest number of gradients that are computed to find labels.
MOST_GRADIENTS = 5_000


def agreement(observation: Observation, samples: Tensor, labels: Tensor | None) -> float:
    """Return the relative distance of the message that rebuilt samples would cause from the observed message.

    A factor between the two messages does not count. The result is infinite if the message cannot be computed.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        samples: The rebuilt samples, without normalisation.
        labels: Their labels.
    """
    if labels is None or len(labels) != len(samples):
        return math.inf
    like = next(iter(observation.sent.values()))
    inputs = observation.data.normalise(samples.reshape(-1, *observation.data.shape).to(like))
    try:
        predicted = FullSimulation().begin(observation, functional=False)(inputs, labels.to(like.device))
    except (LeakgaugeError, RuntimeError, ValueError, IndexError):
        return math.inf
    observed = observation.difference()
    one = flatten({name: predicted[name].detach() for name in observed}).double()
    other = flatten(observed).double()
    cosine = float(one @ other / (one.norm() * other.norm()).clamp_min(1e-300))
    return math.sqrt(max(0.0, 1 - cosine**2)) if cosine > 0 else math.inf


def labels_from_parts(
    observation: Observation, samples: Tensor, name: str, rows: Sequence[Tensor], parts: Tensor
) -> Tensor | None:
    """Return the label of each sample, from the direction of its part of one parameter's gradient.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        samples: The samples, without normalisation.
        name: The name of the parameter.
        rows: For each sample, the row of the parameter's gradient that the part belongs to.
        parts: The part of each sample.
    """
    classes = observation.data.classes
    if classes is None or classes * len(samples) > MOST_GRADIENTS:
        return None
    like = next(iter(observation.sent.values()))
    inputs = observation.data.normalise(samples.reshape(-1, *observation.data.shape).to(like))
    labels = []
    for index, part in enumerate(parts):
        cosines = []
        for label in range(classes):
            target = torch.tensor([label], device=like.device)
            gradient = message_of(observation, inputs[index : index + 1], target, one_gradient=True)[name]
            vector = gradient[rows[index]].double().flatten()
            cosines.append(float(vector @ part / vector.norm().clamp_min(1e-300)))
        labels.append(max(range(classes), key=cosines.__getitem__))
    return torch.tensor(labels, device=like.device)
