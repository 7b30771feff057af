r"""Estimates of the training recipe for an attacker who knows only a part of it.

For cross-entropy after a linear layer with bias, the bias of a class :math:`k` without samples moves by :math:`\eta
\sum_t \bar p_k(t) \approx \eta\,U\,\bar p_k` over the :math:`U` local steps. The bias of every other class moves by
less. The largest ratio over the classes, :math:`U \approx \max_k \Delta b_k / (\eta\,\bar p_k)`, is an estimate of the
number of steps. With this estimate, the batch size follows from the number of epochs, or the number of epochs from the
batch size:

==================  =========================================================================
unknown             assumed
==================  =========================================================================
batch size          ``samples * epochs / U`` (all samples, if U cannot be estimated)
epochs              ``U * batch size / samples`` (one, if U cannot be estimated)
both                ``U`` epochs of one full batch (one epoch, if U cannot be estimated)
==================  =========================================================================

The learning rate and the number of samples are not estimated. An attack that needs one of these values fails with a
message if the value is unknown.
"""

from __future__ import annotations

import torch

from leakgauge.attacks.inversion.labels import dummy_statistics, last_linear
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation


def complete_recipe(observation: Observation, generator: torch.Generator) -> Observation:
    """Return the observation, with estimates in place of an unknown batch size or number of epochs.

    Args:
        observation: The message of the client.
        generator: The random generator for the dummy inputs.
    """
    training = observation.training
    if observation.kind == "gradient" or None not in (training.batch_size, training.epochs):
        return observation
    samples = int(training.need("samples"))
    steps = estimate_steps(observation, generator)
    batch, epochs = training.batch_size, training.epochs
    if batch is None and epochs is None:
        return observation.knowing(batch_size=samples, epochs=steps or 1)
    if batch is None:
        assert epochs is not None
        guess = samples if steps is None else round(samples * epochs / steps)
        return observation.knowing(batch_size=min(samples, max(1, guess)))
    steps_per_epoch = -(-samples // batch)
    return observation.knowing(epochs=1 if steps is None else max(1, round(steps / steps_per_epoch)))


def estimate_steps(observation: Observation, generator: torch.Generator, *, dummies: int = 1000) -> int | None:
    """Estimate the number of local steps from the last layer's bias, or return ``None`` if this is impossible.

    Args:
        observation: The message of the client.
        generator: The random generator for the dummy inputs.
        dummies: The number of dummy inputs.
    """
    training, classes = observation.training, observation.data.classes
    if training.lr is None or classes is None or training.loss != "cross_entropy" or observation.returned is None:
        return None
    try:
        name, layer = last_linear(observation.model, classes)
    except MissingKnowledge:
        return None
    moved = observation.difference().get(f"{name}.bias")
    if moved is None or not layer.bias.requires_grad:
        return None
    first, last = (
        dummy_statistics(observation, weights, layer, dummies, generator)[0]
        for weights in (observation.sent, observation.returned)
    )
    return max(1, round(float((moved / (training.lr * (first + last) / 2)).max())))
