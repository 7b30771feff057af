r"""What the attacker assumes of a recipe that it knows only in part.

For cross-entropy after a linear layer with bias, a class :math:`k` of which the client has no sample moves its
bias by :math:`\eta \sum_t \bar p_k(t) \approx \eta\,U\,\bar p_k` over the :math:`U` local steps, and every other
class by less. The largest ratio over the classes, :math:`U \approx \max_k \Delta b_k / (\eta\,\bar p_k)`, tells
the number of steps, and with it the batch size from the epochs or the epochs from the batch size:

==================  ====================================================================
unknown             assumed
==================  ====================================================================
batch size          ``samples * epochs / U`` (all samples, if U cannot be told)
epochs              ``U * batch size / samples`` (one, if U cannot be told)
both                full batches: ``U`` epochs of one step (one epoch, if U cannot be told)
==================  ====================================================================

The learning rate and the number of samples are not guessed: an attack that needs them says so.
"""

from __future__ import annotations

import torch

from leakgauge.attacks.inversion.labels import dummy_statistics, last_linear
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation


def complete_recipe(observation: Observation, generator: torch.Generator) -> Observation:
    """The observation with the batch size and epochs that its update suggests, where they are unknown."""
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
    a_pass = -(-samples // batch)
    return observation.knowing(epochs=1 if steps is None else max(1, round(steps / a_pass)))


def estimate_steps(observation: Observation, generator: torch.Generator, *, dummies: int = 1000) -> int | None:
    """The number of local steps that the last layer's bias tells of; ``None`` where it cannot be told."""
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
