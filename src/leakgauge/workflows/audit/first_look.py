"""A fast estimate of the risk of a message before any attack, with reasons and the attacks that apply.

The estimate uses only what the attacker sees. It is not a verdict. An attack may fail although the risk is high, and
succeed although the risk is medium. The risk is low only if the message does not depend on the samples, or if a proof
limits every attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from leakgauge.attacks import registry
from leakgauge.attacks.analytic.counting import convolution_equations, count_samples
from leakgauge.attacks.analytic.dense import DoesNotFit, one_gradient_of
from leakgauge.attacks.analytic.lookups import lookups_of, used_rows
from leakgauge.attacks.inversion.free_targets import head_for, unknown_targets
from leakgauge.attacks.inversion.known_defences import known_defences
from leakgauge.attacks.inversion.last_layer import last_layer
from leakgauge.attacks.inversion.layers import Layer, layers_of_model
from leakgauge.attacks.spec import AttackSpec, Fit
from leakgauge.attacks.unknown_rate import one_step_of_unknown_rate, with_rate
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.evaluation.bounds import Bound, supports_nothing_found
from leakgauge.federation.training import in_mode

Risk = Literal["high", "medium", "low"]
RISKS: tuple[Risk, ...] = ("low", "medium", "high")
#: With at most this many local steps, attacks can simulate the whole training.
FEW_STEPS = 100
#: Defences that leave the direction of an update, or only change what is sent in a way that the recipe describes.
LEAVES_DIRECTION = ("Clipping", "LocalWork", "SecureAggregation")


@dataclass(frozen=True)
class Reason:
    """One reason for the estimated risk of a message.

    Args:
        about: The topic of the reason, such as ``"size"``, ``"steps"`` or ``"defences"``.
        risk: The risk if only this topic is considered.
        sentence: The reason in words.
    """

    about: str
    risk: Risk
    sentence: str


@dataclass(frozen=True)
class FirstLook:
    """The estimated risk of a message, before any attack.

    Args:
        reasons: The reasons for the risk.
        applies: The attacks that can be run on the message. The dictionary holds the reason for each attack.
        refused: The attacks that cannot be run on the message. The dictionary holds the reason for each attack.
        missing: The knowledge that an attacker lacks for optimisation attacks. The text is empty if nothing is missing.
        looks_up: Whether the model looks up values of the samples in an embedding, as token ids.
    """

    reasons: tuple[Reason, ...]
    applies: dict[str, str]
    refused: dict[str, str]
    missing: str = ""
    looks_up: bool = False

    @property
    def risk(self) -> Risk:
        """The risk that samples are recovered.

        If an exact attack applies, the risk is high, unless defences or a proof lower it. If no exact attack applies,
        the result is the lowest risk of all reasons except those about labels and about a convolution.
        """
        exact = [reason for reason in self.reasons if reason.about == "exact attack"]
        limits = [reason for reason in self.reasons if reason.about in ("defences", "proof", "message")]
        others = [reason for reason in self.reasons if reason.about not in ("labels", "convolution")]
        return _lowest([*exact, *limits] if exact else others)

    def __str__(self) -> str:
        return f"{self.risk} risk: " + " ".join(reason.sentence for reason in self.reasons)


def _lowest(reasons: Iterable[Reason]) -> Risk:
    return RISKS[min((RISKS.index(reason.risk) for reason in reasons), default=0)]


def first_look(observation: Observation, bound: Bound | None = None) -> FirstLook:
    """Estimate the risk of a message, and find the attacks that apply. No attack is run.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        bound: The proven limit on the success of every attack, if the client's defences have a proof.
    """
    specs = registry.specs(reads="update")
    fits = {spec.name: spec.fits(observation) for spec in specs}
    return FirstLook(
        tuple(_reasons(observation, bound, specs, fits)),
        {name: fit.reason for name, fit in fits.items() if fit.applies},
        {name: fit.reason for name, fit in fits.items() if not fit.applies},
        _missing_for_optimisation(observation),
        bool(lookups_of(observation).slots),
    )


def _reasons(
    observation: Observation, bound: Bound | None, specs: list[AttackSpec], fits: dict[str, Fit]
) -> Iterator[Reason]:
    if not any(bool(value.any()) for value in observation.difference().values()):
        yield Reason("message", "low", "The update is zero, so it holds nothing about the samples.")
        return
    applying = [spec for spec in specs if spec.recovers == "samples" and fits[spec.name].applies]
    searches = [spec.name for spec in applying if not spec.exact and spec.audit is not None]
    for spec in applying:
        if spec.exact:
            sentence = f"The exact attack {spec.name} applies: {fits[spec.name].reason}."
            yield Reason("exact attack", "high", sentence)
    yield _size(observation)
    yield _steps(observation, searches)
    yield _first_layer(observation)
    equations = convolution_equations(observation) if observation.training.samples == 1 else None
    if equations is not None:
        yield Reason("convolution", "medium" if "not determined" in equations else "high", equations)
    if observation.training.mode == "train" and _has_batch_norm(observation.model):
        yield _batch_norm(observation)
    yield _labels(observation)
    if observation.defences:
        yield _defences(observation)
    if bound is not None:
        yield _proof(bound)


def _size(observation: Observation) -> Reason:
    """Compare the number of values in the message with the number of private values in the samples."""
    trained = sum(value.numel() for value in observation.model.parameters() if value.requires_grad)
    samples = observation.training.samples
    if samples is None:
        return Reason("size", "medium", "The attacker does not know how many samples are in the message.")
    private = samples * math.prod(observation.data.shape)
    owner = "one sample" if samples == 1 else f"{samples:,} samples"
    words = f"The message has {trained:,} numbers for the {private:,} private ones of {owner}"
    if trained >= private:
        return Reason("size", "high", f"{words}, so there is no lack of equations.")
    sentence = f"{words}. To recover all of them, an attack needs further knowledge, such as their distribution."
    return Reason("size", "medium", sentence)


def _steps(observation: Observation, searches: list[str]) -> Reason:
    """Estimate the risk from the number of local steps, and name the optimisation attacks that apply."""
    missing = _missing_for_optimisation(observation)
    if missing:
        need = f" Optimisation attacks need {missing}, which the attacker does not know."
        return Reason("steps", "medium", _training_in_words(observation) + need)
    attacks = f" Optimisation attacks that apply: {', '.join(searches)}." if searches else ""
    risk: Risk = "high"
    if observation.kind == "weights":
        try:
            risk = "high" if observation.training.steps <= FEW_STEPS else "medium"
        except MissingKnowledge:
            risk = "medium"
    return Reason("steps", risk, _training_in_words(observation) + attacks)


def _training_in_words(observation: Observation) -> str:
    """Return a sentence about the number of local steps behind the message."""
    if observation.kind == "gradient":
        return "It is one gradient, which depends on the samples directly."
    try:
        steps = observation.training.steps
    except MissingKnowledge:
        return "It is the result of local training that is only partly known."
    if steps > 1:
        return f"It is the result of {steps} local steps."
    if one_step_of_unknown_rate(observation):
        solved = with_rate(observation).training.lr
        if solved is not None:
            words = "whose unknown learning rate follows from the last layer"
            return f"It is the result of one local step, {words} ({solved:.3g})."
        return "It is the result of one local step of an unknown rate, which shows the direction of the gradient."
    try:
        one_gradient_of(observation)
    except DoesNotFit:
        return "It is the result of one local step, whose gradient does not follow from what is known."
    return "It is the result of one local step, from which exact attacks compute the gradient."


def _missing_for_optimisation(observation: Observation) -> str:
    """Name the knowledge that an attacker lacks for optimisation attacks. The text is empty if nothing is missing."""
    if observation.training.samples is None and count_samples(observation) is None:
        return "the number of samples"
    if observation.kind == "weights" and observation.training.lr is None and not one_step_of_unknown_rate(observation):
        return "the learning rate"
    return "the targets" if unknown_targets(observation) and head_for(observation) is None else ""


def _first_layer(observation: Observation) -> Reason:
    """Describe the first trained layer that the samples reach."""
    trained = [name for name, value in observation.model.named_parameters() if value.requires_grad]
    layers = layers_of_model(observation.model, trained)
    if not layers:
        return Reason("first layer", "low", "The model trains no layer.")
    first = _reached_first(observation, layers)
    if first is None:
        return Reason("first layer", "high", "The order of the model's layers could not be found.")
    if first.kind == "linear":
        bias = "with" if any(name.endswith("bias") for name in first.parameters) else "without"
        sentence = f"The first trained layer is dense, {bias} a bias. Its gradient is a weighted sum of its inputs."
        return Reason("first layer", "high", sentence)
    if isinstance(observation.model.get_submodule(first.name), nn.Embedding | nn.EmbeddingBag):
        sentence = f"The first trained layer is an embedding. {_named(observation)}".strip()
        return Reason("first layer", "high", sentence)
    if first.kind == "other":
        return Reason("first layer", "high", "The first trained layer is neither dense nor a convolution.")
    return Reason("first layer", "high", f"The first trained layer is a {first.kind}.")


def _named(observation: Observation) -> str:
    """Return a sentence with the number of rows of each embedding that the client has looked up."""
    tables = dict.fromkeys(slot.table for slot in lookups_of(observation).slots)
    parts = [
        f"{len(used_rows(observation, table)):,} of the {len(observation.sent[table]):,} rows of {table}"
        for table in tables
        if table in observation.difference()
    ]
    if not parts:
        return ""
    return f"The update changes {' and '.join(parts)}, which are the words or categories that the client has."


def _reached_first(observation: Observation, layers: tuple[Layer, ...]) -> Layer | None:
    """Return the layer that a forward pass reaches first, or ``None`` if the pass fails or reaches no layer."""
    reached: list[str] = []
    handles = [
        observation.model.get_submodule(layer.name).register_forward_pre_hook(
            lambda module, inputs, name=layer.name: reached.append(name)
        )
        for layer in layers
    ]
    like = next(iter(observation.sent.values()))
    dummy = torch.zeros(1, *observation.data.shape, device=like.device, dtype=like.dtype)
    try:
        with torch.no_grad(), in_mode(observation.model, "eval"):
            functional_call(observation.model, {**observation.sent, **observation.model_buffers()}, (dummy,))
    except Exception:  # a user's model may fail on a single dummy sample in any way
        return None
    finally:
        for handle in handles:
            handle.remove()
    inner = [name for name in reached if not any(other.startswith(f"{name}.") or not name for other in reached)]
    order = inner or reached
    return next((layer for layer in layers if order and layer.name == order[0]), None)


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _batch_norm(observation: Observation) -> Reason:
    words = "Batch norm in train mode mixes the samples of a batch, and attacks have to match their common statistics."
    if observation.buffers is not None and observation.returned_buffers is not None:
        sentence = f"{words} The server sees the running statistics before and after the round."
    else:
        sentence = f"{words} The server does not see the running statistics."
    return Reason("batch norm", "medium", sentence)


def _labels(observation: Observation) -> Reason:
    if observation.labels is not None:
        return Reason("labels", "high", "The labels are granted.")
    if observation.data.classes is None:
        return _targets(observation)
    try:
        reading = last_layer(observation)
        reading.mean_gradient(observation, observation.difference())
    except MissingKnowledge as problem:
        cause = str(problem).partition(". ")[0].rstrip(".")
        sentence = f"The last layer does not show the labels: {cause}."
        if observation.training.samples is not None:
            sentence += " They are estimated from the gradients that each label causes."
        return Reason("labels", "medium", sentence)
    if observation.kind == "gradient" and observation.training.samples == 1 and reading.part == "bias":
        return Reason("labels", "high", "The last layer's bias shows the label of the sample.")
    sentence = f"The number of samples of each label can be estimated from the last layer's {reading.part}."
    return Reason("labels", "high", sentence)


def _targets(observation: Observation) -> Reason:
    """Describe targets that are no classes, and how attacks treat them."""
    shape, values = observation.data.target_shape, observation.data.target_values
    kind = "numbers" if values is None else "several labels" if len(shape) < 2 else "masks"
    words = f"The targets are {kind}, which the message does not show directly."
    if head_for(observation) is None:
        return Reason("labels", "low", f"{words} The loss does not accept targets that can be optimised.")
    return Reason("labels", "medium", f"{words} They are optimised beside the samples.")


def _defences(observation: Observation) -> Reason:
    """Describe the known defences. A defence that keeps the direction of the update does not lower the risk."""
    assert observation.defences is not None
    known = known_defences(observation)
    harmless = len(known) == len(observation.defences) and all(one.name in LEAVES_DIRECTION for one in known)
    words = f"The client defends itself with {', '.join(observation.defences)}."
    if harmless:
        return Reason("defences", "high", f"{words} This leaves the direction of the update, which attacks compare.")
    return Reason("defences", "medium", f"{words} This hinders exact attacks. Only a proof covers every attack.")


def _proof(bound: Bound) -> Reason:
    """Describe the proven limit on the success of every attack. The risk is low only if this limit is strong."""
    risk: Risk = "low" if supports_nothing_found(bound) else "high" if bound.useless else "medium"
    return Reason("proof", risk, bound.sentence)
