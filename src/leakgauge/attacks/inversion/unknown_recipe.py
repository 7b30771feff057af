r"""Estimates of unknown training settings, such as the batch size, from a client's update.

Assume cross-entropy after a linear layer with bias. The bias of a class :math:`k` without samples changes by
:math:`\eta \sum_t \bar p_k(t) \approx \eta\,U\,\bar p_k` over the :math:`U` local steps. Here :math:`\eta` is the
learning rate, and :math:`\bar p_k` is the mean predicted probability of the class. The bias of every other class
changes by less. With :math:`\Delta b_k` the change of the bias of class :math:`k`, the number of steps is therefore
estimated as the largest ratio over all classes, :math:`U \approx \max_k \Delta b_k / (\eta\,\bar p_k)`. With this
estimate, the batch size follows from the number of epochs, or the number of epochs from the batch size:

==================  =========================================================================
unknown             assumed
==================  =========================================================================
batch size          ``samples * epochs / U`` (all samples, if U cannot be estimated)
epochs              ``U * batch size / samples`` (one, if U cannot be estimated)
both                ``U`` epochs of one full batch (one epoch, if U cannot be estimated)
==================  =========================================================================

A step of Adam moves the bias of a class without samples by nearly the learning rate, so that :math:`U \approx \max_k
|\Delta b_k| / \eta`. An unknown optimiser is guessed by :func:`~leakgauge.core.one_gradient.optimiser_of`.

An unknown number of samples is the rank of the first dense layer's gradient, if the message is one gradient
(:func:`~leakgauge.attacks.analytic.counting.count_samples`). The learning rate is not estimated. An attack that needs a
value that is unknown and cannot be estimated fails with a message.
"""

from __future__ import annotations

import torch

from leakgauge.attacks.inversion.label_counts import dummy_statistics
from leakgauge.attacks.inversion.last_layer import last_layer
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of


def complete_recipe(observation: Observation, generator: torch.Generator) -> Observation:
    """Return the observation with estimates in place of an unknown number of samples, number of epochs or batch size.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        generator: The random generator for the dummy inputs.
    """
    if observation.training.samples is None:
        from leakgauge.attacks.analytic.counting import count_samples  # exact attacks import parts of inversions

        samples = count_samples(observation)
        observation = observation if samples is None else observation.knowing(samples=samples)
    training = observation.training
    if observation.kind == "gradient" or None not in (training.batch_size, training.epochs):
        return observation
    held = int(training.need("samples"))
    steps = estimate_steps(observation, generator)
    batch, epochs = training.batch_size, training.epochs
    if batch is None and epochs is None:
        return observation.knowing(batch_size=held, epochs=steps or 1)
    if batch is None:
        assert epochs is not None
        guess = held if steps is None else round(held * epochs / steps)
        return observation.knowing(batch_size=min(held, max(1, guess)))
    steps_per_epoch = -(-held // batch)
    return observation.knowing(epochs=1 if steps is None else max(1, round(steps / steps_per_epoch)))


def estimate_steps(observation: Observation, generator: torch.Generator, *, dummies: int | None = None) -> int | None:
    """Estimate the number of local steps from the last layer's bias, or return ``None`` if this is impossible.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        generator: The random generator for the dummy inputs.
        dummies: The number of dummy inputs. By default, that of :func:`.number_of_dummies`.
    """
    training = observation.training
    if training.lr is None or observation.returned is None:
        return None
    try:
        reading = last_layer(observation, "bias")
    except MissingKnowledge:
        return None
    moved = reading.values(observation.difference())
    if optimiser_of(observation) != "sgd":
        return max(1, round(float(moved.abs().max()) / training.lr))
    first, last = (
        dummy_statistics(observation, weights, reading.layer, dummies, generator)[0]
        for weights in (observation.sent, observation.returned)
    )
    return max(1, round(float((moved / (training.lr * (first + last) / 2)).max())))
