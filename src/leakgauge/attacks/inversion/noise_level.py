r"""The share of a message that is noise, as far as the attacker knows it or can measure it.

With softmax and cross-entropy, the gradient of the last layer's weights is :math:`\sum_i (p_i - y_i)\,h_i^\top`. Here
:math:`p_i` are the predicted probabilities of sample :math:`i`, :math:`y_i` is its label as a one-hot vector, and
:math:`h_i` is the input of the layer. The entries of each :math:`p_i - y_i` add up to zero, so the sum of this gradient
over the classes is exactly zero, in every local step. If the sum is not zero, noise was added to the message. The
variance of the sum is then the number of classes times the variance of the noise on one entry.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.attacks.inversion.compression import pruning_of, rounding_noise
from leakgauge.attacks.inversion.known_defences import known_defences, noise_share
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of

#: The share of noise below which a message counts as exact. Rounding in single precision stays below it.
ROUNDING = 1e-6


def noise_in(observation: Observation) -> float:
    """Return the share of the message's squared norm that is noise, between 0 and 1.

    The share follows from the client's defences if the attacker knows a defence that adds noise. Otherwise the share is
    measured, or computed from the steps of a quantised message. If none of this is possible, the result is 0. A pruned
    message cannot be measured, because its missing entries change all sums.

    Args:
        observation: The message of the client.
    """
    known = noise_share(observation, known_defences(observation))
    if known > 0:
        return known
    if pruning_of(observation) is not None:
        return 0.0
    return measured_noise(observation) or rounding_noise(observation)


def measured_noise(observation: Observation) -> float:
    """Measure the share of noise in a message from the sums of the last layer's gradient over the classes.

    The measure assumes noise of the same size on every entry of the message. It is 0 for a loss other than
    cross-entropy, and for clients with weight decay or Adam, for which these sums are not zero. Noise below the
    rounding error of the returned weights is ignored.

    Args:
        observation: The message of the client.
    """
    training, classes = observation.training, observation.data.classes
    if training.loss != "cross_entropy" or training.weight_decay or classes is None or classes < 2:
        return 0.0
    if optimiser_of(observation) != "sgd":
        return 0.0
    update = observation.difference()
    head = _class_sums(list(update.values())[-2:], classes)
    total = sum(float(value.double().square().sum()) for value in update.values())
    if not len(head) or total == 0:
        return 0.0
    variance = float(head.square().mean()) / classes
    if observation.kind == "weights" and variance <= _rounding_of(list(observation.sent.values())[-2:]) ** 2:
        return 0.0
    share = variance * sum(value.numel() for value in update.values()) / total
    return min(1.0, share) if share > ROUNDING else 0.0


def _rounding_of(weights: list[Tensor]) -> float:
    """Return the largest rounding error that an entry of these weights may have."""
    return max(torch.finfo(value.dtype).eps * float(value.abs().max()) for value in weights)


def _class_sums(tensors: list[Tensor], classes: int) -> Tensor:
    """Sum the kernel and the bias of the last layer over the classes, and return the sums as one vector."""
    ours = [value for value in tensors if value.dim() in (1, 2) and value.shape[0] == classes]
    if not any(value.dim() == 2 for value in ours):
        return torch.zeros(0)
    return torch.cat([value.double().sum(0).reshape(-1) for value in ours]).cpu()
