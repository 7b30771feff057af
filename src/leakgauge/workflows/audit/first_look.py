"""A first look at a message before any attack. It estimates the risk, with reasons, and finds the attacks that apply.

The first look uses only what the attacker sees, and is fast. It is an estimate and not a verdict. An attack may fail
although the risk is high, and succeed although the risk is low.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from leakgauge.attacks import registry
from leakgauge.attacks.inversion.labels import last_layer
from leakgauge.attacks.inversion.layers import layers_of_model
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation

Risk = Literal["high", "medium", "low"]
RISKS: tuple[Risk, ...] = ("low", "medium", "high")
#: With this many samples in one message, no attack here has recovered more than a few.
MANY_SAMPLES = 256


@dataclass(frozen=True)
class Reason:
    """One reason for the risk.

    Args:
        about: The part of the message that the reason is about.
        risk: The risk that follows from this part alone.
        sentence: The reason in words.
    """

    about: str
    risk: Risk
    sentence: str


@dataclass(frozen=True)
class FirstLook:
    """The estimated risk of a message.

    Args:
        reasons: The reasons for the risk.
        applies: A dictionary. Its keys are the attacks that apply, and its values are the reasons.
        refused: A dictionary. Its keys are the attacks that do not apply, and its values are the reasons.
    """

    reasons: tuple[Reason, ...]
    applies: dict[str, str]
    refused: dict[str, str]

    @property
    def risk(self) -> Risk:
        """The risk that samples are recovered. It is the lowest risk of all reasons that are not about labels."""
        levels = [RISKS.index(reason.risk) for reason in self.reasons if reason.about != "labels"]
        return RISKS[min(levels, default=0)]

    def __str__(self) -> str:
        return f"{self.risk} risk: " + " ".join(reason.sentence for reason in self.reasons)


def first_look(observation: Observation) -> FirstLook:
    """Estimate the risk of a message, and find the attacks that apply. No attack is run."""
    fits = {spec.name: spec.fits(observation) for spec in registry.specs(reads="update")}
    return FirstLook(
        tuple(_reasons(observation)),
        {name: fit.reason for name, fit in fits.items() if fit.applies},
        {name: fit.reason for name, fit in fits.items() if not fit.applies},
    )


def _reasons(observation: Observation) -> Iterator[Reason]:
    yield _size(observation)
    yield _steps(observation)
    yield _first_layer(observation)
    yield _labels(observation)
    if observation.defences:
        yield Reason("defences", "medium", f"The client defends itself with {', '.join(observation.defences)}.")


def _size(observation: Observation) -> Reason:
    """Estimate the risk from the number of values in the message and the number of private values in the samples."""
    trained = sum(value.numel() for value in observation.model.parameters() if value.requires_grad)
    samples = observation.training.samples
    if samples is None:
        return Reason("size", "medium", "The attacker does not know how many samples are in the message.")
    private = samples * math.prod(observation.data.shape)
    ratio = trained / private
    owner = "one sample" if samples == 1 else f"{samples} samples"
    words = f"The message has {trained:,} numbers for the {private:,} private ones of {owner}"
    if samples >= MANY_SAMPLES:
        return Reason("size", "low", f"{words}. No attack here has recovered so many samples from one message.")
    if ratio >= 1:
        return Reason("size", "high", f"{words}, enough to determine them.")
    return Reason("size", "low" if ratio < 0.1 else "medium", f"{words}, too few to determine them all.")


def _steps(observation: Observation) -> Reason:
    """Estimate the risk from the number of local steps that the client made before it sent the message."""
    if observation.kind == "gradient":
        return Reason("steps", "high", "It is one gradient, which depends on the samples directly.")
    try:
        steps = observation.training.steps
    except MissingKnowledge:
        return Reason("steps", "medium", "It is the result of local training that is only partly known.")
    if steps == 1:
        return Reason("steps", "high", "It is the result of one local step, and as good as a gradient.")
    risk: Risk = "high" if steps <= 100 else "medium"
    return Reason("steps", risk, f"It is the result of {steps} local steps, through which an attack can differentiate.")


def _first_layer(observation: Observation) -> Reason:
    """Estimate the risk from the first layer.

    If the first layer is dense and has a bias, its gradient holds copies of samples, and the risk is high.
    """
    trained = [name for name, value in observation.model.named_parameters() if value.requires_grad]
    layers = layers_of_model(observation.model, trained)
    if not layers:
        return Reason("first layer", "low", "The model trains no layer.")
    first = layers[0]
    if first.kind == "linear" and len(first.parameters) == 2:
        single = (observation.training.samples or 2) == 1
        content = "the sample itself" if single else "sums of samples, and single samples where few neurons fire"
        sentence = f"Samples enter a dense layer with a bias, whose gradient holds {content}."
        return Reason("first layer", "high", sentence)
    if observation.training.mode == "train" and (first.kind == "normalisation" or _has_batch_norm(observation.model)):
        sentence = "Batch norm in train mode mixes the samples of a batch, which hinders attacks."
        return Reason("first layer", "medium", sentence)
    layer = "its first layer" if first.kind == "other" else f"a {first.kind} layer"
    return Reason("first layer", "high", f"Samples enter {layer}, which attacks match by optimisation.")


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _labels(observation: Observation) -> Reason:
    if observation.data.classes is None:
        return Reason("labels", "low", "The targets are numbers, so there are no labels to read.")
    if observation.labels is not None:
        return Reason("labels", "high", "The labels are granted.")
    try:
        reading = last_layer(observation)
    except MissingKnowledge as problem:
        return Reason("labels", "low", f"Labels cannot be read off: {str(problem).partition('. ')[0].rstrip('.')}.")
    sentence = f"The number of samples of each label can be read off the last layer's {reading.part}, nearly exactly."
    return Reason("labels", "high", sentence)
