r"""The client's gradient, computed from its message if the message is a gradient or the result of one step of SGD.

A FedSGD client sends its gradient. If a FedAvg client takes only one step of SGD, the server can compute the gradient
from the returned weights. Let :math:`\theta^s` be the sent weights, :math:`\theta^c` the returned weights, :math:`\eta`
the learning rate, :math:`f` the first factor of the schedule and :math:`\omega` the weight decay. Let :math:`\mu` be
the momentum if it is Nesterov's, and otherwise 0. Then the gradient :math:`g` follows from

.. math:: \theta^s - \theta^c = \eta f (1 + \mu) (g + \omega\,\theta^s).

Plain momentum, dampening and FedProx's term have no effect on a first step. A first step of Adam or AdamW reveals only
:math:`g / (|g| + \varepsilon)`, which is little more than the sign of each entry. ``adam_read_off`` needs no more than
this. Every attack and every check that needs a gradient uses the functions of this module.
"""

from __future__ import annotations

import torch

from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.local_training import OptimiserName
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, flatten

#: A gradient is clipped if its norm is within this relative distance of the limit.
_AT_LIMIT = 1e-3
#: The number of the largest changes among which Adam's changes are nearly equal, as a share of all changes.
_LARGEST_SHARE = 0.5
#: The smallest ratio of the median and the largest change for which an unknown optimiser counts as Adam.
_EVEN = 0.3


def why_no_gradient(observation: Observation, *, length: bool = True) -> str | None:
    """Return the reason why no gradient can be computed from a message, or ``None`` if there is no obstacle.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        length: Whether the length of the gradient is needed, and not only its direction. Clipping hides the length.
    """
    reason = None if observation.kind == "gradient" else _why_no_step(observation)
    if reason is None and length and _is_clipped(observation):
        limit = observation.training.clip_norm
        return f"the client clipped its gradient to the norm {limit:g}, so the length of the gradient is unknown"
    return reason


def gradient_of(observation: Observation, *, length: bool = True) -> Params:
    """Compute the client's gradient from its message, in double precision.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        length: Whether the length of the gradient is needed. If not, a clipped gradient causes no error.

    Raises:
        MissingKnowledge: If no gradient can be computed from the message. The text of the error contains the reason.
    """
    reason = why_no_gradient(observation, length=length)
    if reason is not None:
        raise MissingKnowledge(f"this attack needs one gradient, but {reason}.")
    return _undone(observation)


def mixes_linearly(observation: Observation) -> bool:
    """Return whether the update is a weighted sum of gradients and known weights.

    This is true for SGD with any settings. Attacks can then solve linear equations. For example, each row of a dense
    layer's gradient is a combination of the layer's inputs, and a sum of gradients keeps this property.
    """
    return observation.kind == "gradient" or optimiser_of(observation) == "sgd"


def optimiser_of(observation: Observation) -> OptimiserName:
    """Return the client's optimiser, or a guess from the update if the optimiser is unknown.

    Adam changes most weights by nearly the same amount. SGD changes weights in proportion to their gradients, whose
    sizes differ by orders of magnitude.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    known = observation.training.optimiser
    if known is not None or observation.kind == "gradient":
        return known or "sgd"
    changes = flatten(observation.difference()).abs()
    changes = changes[changes > 0]
    if not len(changes):
        return "sgd"
    ordered = changes.double().sort(descending=True).values
    median = ordered[int(_LARGEST_SHARE * (len(ordered) - 1))]
    return "adam" if float(median / ordered[0]) > _EVEN else "sgd"


def _why_no_step(observation: Observation) -> str | None:
    """Return the reason why local training is not one step of SGD with known settings, or ``None`` if it is."""
    training = observation.training
    if None in (training.epochs, training.batch_size, training.samples):
        return "the number of local steps is unknown"
    if training.steps > 1:
        return f"this is the result of {training.steps} local steps"
    name = optimiser_of(observation)
    if name != "sgd":
        return f"a step of {name.capitalize().replace('Adamw', 'AdamW')} keeps little more than the signs of a gradient"
    if training.lr is None:
        return "the client's learning rate is unknown"
    if training.weight_decay is None:
        return "the client's weight decay is unknown"
    return None


def _is_clipped(observation: Observation) -> bool:
    limit = observation.training.clip_norm
    return bool(limit) and float(flatten(_undone(observation)).norm()) >= (1 - _AT_LIMIT) * float(limit or 0)


def _undone(observation: Observation) -> Params:
    """Compute the gradient from a message that is a gradient or the result of one step of SGD."""
    if observation.gradient is not None:
        return {name: value.double() for name, value in observation.gradient.items()}
    training = observation.training
    assert observation.returned is not None
    trained = {name for name, value in observation.model.named_parameters() if value.requires_grad}
    momentum = float(training.momentum or 0.0) if training.nesterov else 0.0
    length = training.need("lr") * training.factor(0) * (1 + momentum)
    decay = float(training.weight_decay or 0.0)
    gradient = {}
    for name, sent in observation.sent.items():
        applied = (sent.double() - observation.returned[name].double()) / length
        gradient[name] = applied - decay * sent.double() if name in trained else torch.zeros_like(applied)
    return gradient
