"""Where matching gradients is known to be fragile, told from what the attacker sees.

The sentence goes into the outcome: a failure then says why it is no sign of safety, and a success where not to trust
its loss alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from leakgauge.attacks.inversion.labels import last_linear
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation

#: Layers that are linear in pieces.
KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


class Caution(Protocol):
    """What an attack adds to its outcome."""

    def __call__(self, observation: Observation) -> str:
        """Words of warning about this observation; none if there is nothing to warn of."""
        ...


@dataclass(frozen=True)
class SmoothOnly:
    """For attacks by L-BFGS on the Euclidean distance of gradients (DLG and its kin).

    They want second derivatives, which piecewise linear layers do not have (Wei et al., ESORICS 2020); weights that
    have not learned yet, since what a network already predicts well leaves hardly a gradient (Geiping et al. 2020);
    a gradient that reaches the first layer, where a sample enters (with sigmoids and PyTorch's initialisation it has
    vanished by then); and few samples at once (Zhu et al. 2019 go up to ``samples``).
    """

    samples: int = 8
    predicted: float = 0.9
    first_layer: float = 1e-5

    def __call__(self, observation: Observation) -> str:
        """The reasons that apply here."""
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
        return f"known to be fragile here, since {'; '.join(reasons)}" if reasons else ""


def first_layer_share(observation: Observation) -> float:
    """The share of the update's squared norm that belongs to the first trained parameter; 1 for an update of zero."""
    update = observation.difference()
    sizes = [float(update[name].double().square().sum()) for name, value in observation.model.named_parameters()
             if value.requires_grad]  # fmt: skip
    return sizes[0] / sum(sizes) if sum(sizes) else 1.0


def label_probability(observation: Observation) -> float | None:
    """The probability that the model gives a FedSGD client's labels, or more: ``None`` where it cannot be read.

    The gradient of the last bias is the mean of the predictions less the share of each label; its negative parts add
    up to what is left to learn (for one sample to exactly one minus the label's probability).
    """
    classes, gradient = observation.data.classes, observation.gradient
    if gradient is None or classes is None or observation.training.loss != "cross_entropy":
        return None
    try:
        name, layer = last_linear(observation.model, classes)
    except MissingKnowledge:
        return None
    bias = gradient.get(f"{name}.bias")
    if bias is None or not layer.bias.requires_grad:
        return None
    return 1 - float(-bias.clamp(max=0).sum())
