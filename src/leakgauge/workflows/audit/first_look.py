"""A first answer before any attack: how risky a message looks, why, and which attacks apply to it.

Only what the attacker sees is looked at, and nothing is computed that takes longer than a moment. It is a guess with
its reasons, never a verdict: an attack may fail where this warns, and succeed where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from leakgauge.attacks.inversion.fragility import KINKED
from leakgauge.attacks.inversion.labels import last_layer
from leakgauge.attacks.inversion.layers import layers_of_model
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation

Risk = Literal["high", "medium", "low"]
RISKS: tuple[Risk, ...] = ("low", "medium", "high")
#: From this many samples in one message no attack here was seen to bring back more than a few.
MANY_SAMPLES = 256


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: how much it worries, and why."""

    about: str
    risk: Risk
    sentence: str


@dataclass(frozen=True)
class Prescreen:
    """How risky a message looks, and for every attack the reason why it applies, or does not."""

    findings: tuple[Finding, ...]
    applies: dict[str, str]
    refused: dict[str, str]

    @property
    def risk(self) -> Risk:
        """The risk for samples: that of the weakest obstacle, labels aside."""
        levels = [RISKS.index(one.risk) for one in self.findings if one.about != "labels"]
        return RISKS[min(levels, default=0)]

    def __str__(self) -> str:
        return f"{self.risk} risk: " + " ".join(one.sentence for one in self.findings)


def prescreen(observation: Observation) -> Prescreen:
    """Look at a message without attacking it."""
    findings = tuple(_findings(observation))
    verdicts = {name: rule(observation) for name, rule in APPLIES.items()}
    return Prescreen(
        findings,
        {name: reason for name, (fits, reason) in verdicts.items() if fits},
        {name: reason for name, (fits, reason) in verdicts.items() if not fits},
    )


def _findings(observation: Observation) -> Iterator[Finding]:
    yield _equations(observation)
    yield _steps(observation)
    yield _linear_input(observation)
    yield _labels(observation)
    if observation.defences:
        yield Finding("defences", "medium", f"The client defends itself with {', '.join(observation.defences)}.")


def _equations(observation: Observation) -> Finding:
    """How many numbers the message has for every number that is private."""
    trained = sum(value.numel() for value in observation.model.parameters() if value.requires_grad)
    samples = observation.training.samples
    if samples is None:
        return Finding("size", "medium", "How many samples are in the message is unknown to the attacker.")
    private = samples * math.prod(observation.data.shape)
    ratio = trained / private
    whose = "one sample" if samples == 1 else f"{samples} samples"
    words = f"The message has {trained:,} numbers for {private:,} private ones, those of {whose}"
    if samples >= MANY_SAMPLES:
        return Finding("size", "low", f"{words}; so many samples at once have not come back from one message so far.")
    if ratio >= 1:
        return Finding("size", "high", f"{words}: enough to determine them.")
    return Finding("size", "low" if ratio < 0.1 else "medium", f"{words}: too few to determine them all.")


def _steps(observation: Observation) -> Finding:
    """How directly the message speaks of the samples."""
    if observation.kind == "gradient":
        return Finding("steps", "high", "It is one gradient, which speaks of the samples directly.")
    try:
        steps = observation.training.steps
    except MissingKnowledge:
        return Finding("steps", "medium", "It is the result of local training of which not all is known.")
    if steps == 1:
        return Finding("steps", "high", "It is the result of one local step, and as good as a gradient.")
    return Finding(
        "steps",
        "high" if steps <= 100 else "medium",
        f"It is the result of {steps} local steps, through which an attack can differentiate.",
    )


def _linear_input(observation: Observation) -> Finding:
    """Whether samples enter a linear layer with a bias: its gradient is a copy of them."""
    trained = [name for name, value in observation.model.named_parameters() if value.requires_grad]
    layers = layers_of_model(observation.model, trained)
    if not layers:
        return Finding("first layer", "low", "The model trains no layer.")
    first = layers[0]
    if first.kind == "linear" and len(first.parameters) == 2:
        one = (observation.training.samples or 2) == 1
        how = (
            "holds the sample itself, to be read off"
            if one
            else "holds sums of samples, and single ones where few fire"
        )
        return Finding("first layer", "high", f"Samples enter a linear layer with a bias, whose gradient {how}.")
    if first.kind == "normalisation" or any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in observation.model.modules()
    ):
        mode = observation.training.mode
        if mode == "train":
            return Finding(
                "first layer", "medium", "Batch norm in train mode mixes the samples of a batch, which hinders attacks."
            )
    return Finding("first layer", "high", f"Samples enter a {first.kind} layer, which attacks match by optimisation.")


def _labels(observation: Observation) -> Finding:
    if observation.data.classes is None:
        return Finding("labels", "low", "There are no class labels to read: it is a regression.")
    if observation.labels is not None:
        return Finding("labels", "high", "The labels are granted.")
    try:
        reading = last_layer(observation)
    except MissingKnowledge as problem:
        return Finding("labels", "low", f"Labels cannot be read off: {str(problem).partition(';')[0]}.")
    return Finding(
        "labels",
        "high",
        f"How often each label occurs can be read off the last layer's {reading.part}, nearly exactly.",
    )


Rule = Callable[[Observation], tuple[bool, str]]


def _gradients_only(observation: Observation) -> tuple[bool, str]:
    if observation.kind != "gradient":
        return False, "made for one gradient, and this is local training"
    if any(isinstance(module, KINKED) for module in observation.model.modules()):
        return True, "for one gradient; known to be fragile with piecewise linear layers such as this model's"
    return True, "made for one gradient of a smooth network"


def _always(reason: str) -> Rule:
    return lambda observation: (True, reason)


def _local_training(reason: str) -> Rule:
    def rule(observation: Observation) -> tuple[bool, str]:
        if observation.kind == "gradient":
            return False, "made for local training, and this is one gradient"
        if observation.training.lr is None:
            return False, "needs the client's learning rate, which is unknown"
        return True, reason

    return rule


#: For every attack whether it applies, and the reason.
APPLIES: dict[str, Rule] = {
    "agic": _always("all local steps as one"),
    "awa": _always("one epoch by interpolation, layers weighted"),
    "dlf": _local_training("simulates the local training"),
    "dlf_paper": _local_training("simulates the local training, as published"),
    "dlg": _gradients_only,
    "dlg_simulation": _always("a baseline: Euclidean distance"),
    "epafl": _gradients_only,
    "idlg": _gradients_only,
    "inverting_gradients": _always("the direction of the update, for gradients and local training"),
    "invg_simulation": _always("a baseline: simulation, all layers alike"),
    "surrogate": _local_training("one gradient between the two weights: quick, and rough"),
}
