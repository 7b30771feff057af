r"""The message of a client that took one step of SGD with an unknown learning rate.

Such a message is the gradient times an unknown number. Nothing but the length of the gradient is lost.

- If the client has one sample, the last layer shows the learning rate. The ratio of the gradients of its kernel and its
  bias is the layer's input, so the known weights give the predicted probabilities :math:`p`. The gradient of the bias
  is :math:`p - e_y` for the label :math:`y`, and the change of the bias is this vector times the learning rate.
- Otherwise, the message is a gradient of unknown length, as that of a client that clips its gradient. Attacks that
  compare directions need no more. Weight decay would add an unknown multiple of the sent weights, so it must be 0.

After several steps, the gradients of later steps depend on the learning rate, so it is needed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch.nn import functional as F

from leakgauge.attacks.inversion.last_layer import last_layer
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.local_training import OF_ONE_GRADIENT, LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.params import flatten, inside, scale

#: The length to which a gradient of unknown length is clipped. Real gradients are longer.
LENGTH = 1e-4
#: The largest relative error of the bias's gradient with which the learning rate counts as solved.
SOLVED = 1e-2


def one_step_of_unknown_rate(observation: Observation) -> bool:
    """Return whether a message is the result of one step of SGD whose learning rate is unknown.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    training = observation.training
    if observation.kind == "gradient" or training.lr is not None or training.weight_decay != 0:
        return False
    if None in (training.epochs, training.batch_size, training.samples) or training.steps != 1:
        return False
    return optimiser_of(observation) == "sgd" and any(bool(value.any()) for value in observation.difference().values())


def threat_model(observation: Observation) -> list[str]:
    """Return sentences about the attacker's knowledge, with the knowledge that one step of an unknown rate gives.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    sentences = observation.threat_model()
    if one_step_of_unknown_rate(observation):
        rate = with_rate(observation).training.lr
        known = "the direction of the gradient" if rate is None else f"the gradient, and the learning rate ({rate:.3g})"
        sentences.append(f"One step of SGD shows {known}, although the learning rate is hidden.")
    return sentences


def with_rate(observation: Observation) -> Observation:
    """Return the message with its learning rate, if the rate is unknown and the last layer shows it.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    if not one_step_of_unknown_rate(observation) or observation.training.samples != 1:
        return observation
    rate = _rate_of_one(observation)
    return observation if rate is None else observation.knowing(lr=rate)


def as_direction(observation: Observation) -> Observation:
    """Return the message as a gradient of unknown length, if it is the result of one step of unknown length.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    if not one_step_of_unknown_rate(observation):
        return observation
    change = {name: value.double() for name, value in observation.difference().items()}
    trained = {name for name, value in observation.model.named_parameters() if value.requires_grad}
    length = float(flatten({name: value for name, value in change.items() if name in trained}).norm())
    kept = {name: getattr(observation.training, name) for name in OF_ONE_GRADIENT}
    training = LocalTraining(**{**kept, "clip_norm": LENGTH})
    gradient = scale(change, LENGTH / length)
    return replace(observation, gradient=gradient, returned=None, training=training)


def _rate_of_one(observation: Observation) -> float | None:
    """Return the learning rate of a client with one sample, or ``None`` if the last layer does not show it."""
    try:
        reading = last_layer(observation, "bias")
    except MissingKnowledge:
        return None
    if observation.training.label_smoothing or observation.training.clip_norm:
        return None
    update = observation.difference()
    kernel = update[inside(reading.name, "weight")].double()
    bias = update[inside(reading.name, "bias")].double()
    features = bias @ kernel / bias.square().sum().clamp_min(1e-300)
    sent = observation.sent
    outputs = sent[inside(reading.name, "weight")].double() @ features + sent[inside(reading.name, "bias")].double()
    if len(outputs) == 1:
        gradient = torch.sigmoid(outputs) - (bias < 0).double()
    else:
        gradient = F.softmax(outputs, 0) - F.one_hot(bias.argmin(), len(bias)).double()
    rate = float(gradient @ bias / gradient.square().sum().clamp_min(1e-300))
    error = float((bias - rate * gradient).norm() / bias.norm().clamp_min(1e-300))
    momentum = float(observation.training.momentum or 0.0) if observation.training.nesterov else 0.0
    applied = observation.training.factor(0) * (1 + momentum)
    return rate / applied if error < SOLVED and rate > 0 and math.isfinite(rate) else None
