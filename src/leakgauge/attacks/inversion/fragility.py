"""Warnings for cases in which gradient matching is known to be fragile.

A warning is computed from the observation only, and becomes a part of the outcome of the attack. If an attack with a
warning fails, the failure is no sign of safety. If an attack with a warning succeeds, the loss alone is not reliable
evidence of the success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from leakgauge.attacks.inversion.last_layer import last_linear
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.params import inside

#: Layers that are piecewise linear.
KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


class Caution(Protocol):
    """A rule that adds a warning to the outcome of an attack."""

    def __call__(self, observation: Observation) -> str:
        """Return a warning about this observation, or an empty text if there is none."""
        ...


@dataclass(frozen=True)
class SmoothOnly:
    """The warnings for attacks by L-BFGS on the Euclidean distance of gradients (DLG and its variants).

    These attacks need second derivatives, which piecewise linear layers do not have (Wei et al., ESORICS 2020). They
    need untrained weights, because a sample that a network already predicts well leaves a small gradient (Geiping et
    al. 2020). They need a gradient that is not too small in the first layer, where a sample enters the network. With
    sigmoids and PyTorch's initialisation, the gradient vanishes before it reaches this layer. Finally, these attacks
    need a batch of few samples.

    Args:
        samples: With more samples than this, there is a warning (Zhu et al. 2019 go up to 8).
        predicted: If the model assigns a higher probability than this to the true labels, there is a warning.
        first_layer: If the first layer has a smaller share than this of the gradient's squared norm, there is a
            warning.
    """

    samples: int = 8
    predicted: float = 0.9
    first_layer: float = 1e-5

    def __call__(self, observation: Observation) -> str:
        """Return the warnings that apply to this observation, or an empty text."""
        reasons = []
        kinked = sorted({type(layer).__name__ for layer in observation.model.modules() if isinstance(layer, KINKED)})
        if kinked:
            reasons.append(f"the model has {' and '.join(kinked)}, whose second derivative is zero")
        if observation.round > 0:
            reasons.append(f"its weights were trained for {observation.round} rounds")
        certain = label_probability(observation)
        if certain is not None and certain > self.predicted:
            reasons.append(f"it already gives the true labels a probability of {certain:.2f}")
        share = first_layer_share(observation)
        if share < self.first_layer:
            reasons.append(f"its first layer has only {share:.1g} of the gradient")
        if (observation.training.samples or 1) > self.samples:
            reasons.append(f"{observation.training.samples} samples share one gradient")
        return f"known to be fragile here, since {', and since '.join(reasons)}" if reasons else ""


def first_layer_share(observation: Observation) -> float:
    """Return the share of the update's squared norm that belongs to the first trained parameter.

    The result is 1 for an update of zero.
    """
    update = observation.difference()
    sizes = [float(update[name].double().square().sum()) for name, value in observation.model.named_parameters()
             if value.requires_grad]  # fmt: skip
    return sizes[0] / sum(sizes) if sum(sizes) else 1.0


def label_probability(observation: Observation) -> float | None:
    """Return an upper bound of the probability that the model assigns to the labels of a FedSGD client.

    The result is ``None`` if the bound cannot be computed from the update. For each class, the gradient of the last
    bias is the mean predicted probability of the class minus the share of the samples with this label. The absolute
    values of the negative entries of this gradient are added up. This sum is at most one minus the mean probability of
    the labels, so the bound is one minus the sum. For one sample, the bound is exactly the probability of the sample's
    label.
    """
    classes, gradient = observation.data.classes, observation.gradient
    if gradient is None or classes is None or observation.training.loss != "cross_entropy":
        return None
    try:
        name, layer = last_linear(observation.model, classes)
    except MissingKnowledge:
        return None
    bias = gradient.get(inside(name, "bias"))
    if bias is None or not layer.bias.requires_grad:
        return None
    return 1 - float(-bias.clamp(max=0).sum())
