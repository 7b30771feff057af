r"""Which labels the client has, read from the last layer's part of the update.

For cross-entropy after a linear layer with bias :math:`b` the mean gradient over :math:`N` samples is

.. math:: \partial \ell / \partial b_k = \bar p_k - \lambda_k / N,

with :math:`\bar p_k` the mean predicted probability and :math:`\lambda_k` the number of samples of class
:math:`k`. For one sample only its own class is negative (Zhao et al. 2020, iDLG). For several, :math:`\bar p`
is estimated with random inputs (Geng et al. 2021); without a bias, the row sums of the kernel's gradient,
divided by the mean sum :math:`O` of the activations that enter the layer, take its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.errors import MissingKnowledge
from leakscope.federated.training import in_mode
from leakscope.inversion.checks import whole
from leakscope.observation import Observation
from leakscope.params import scale


class Labels(Protocol):
    """Where an attack takes the labels from."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """One label (or regression target) for each of the client's samples."""
        ...


@dataclass(frozen=True)
class Granted:
    """The labels, or label counts, that the observation grants."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """The granted labels; counts in the order of the classes."""
        labels = granted_labels(observation)
        if labels is None:
            raise MissingKnowledge(
                "this attack needs the client's labels, which this observation does not grant; "
                "supply observation.knowing(labels=...), or choose an attack that infers them"
            )
        return labels


@dataclass(frozen=True)
class LastLayer:
    """The granted labels if there are any; otherwise those inferred from the last layer's update."""

    dummies: int = 1000

    def __post_init__(self) -> None:
        whole("dummies", self.dummies)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Granted or inferred labels."""
        labels = granted_labels(observation)
        if labels is not None:
            return labels
        counts = estimate_label_counts(observation, generator, dummies=self.dummies)
        return torch.repeat_interleave(torch.arange(len(counts)), counts).to(observation.device)


def granted_labels(observation: Observation) -> Tensor | None:
    """The labels that the observation grants, as a list in no particular order; ``None`` if it grants none."""
    if observation.labels is not None:
        return observation.labels
    if observation.label_counts is not None:
        counts = observation.label_counts
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return None


def estimate_label_counts(observation: Observation, generator: torch.Generator, *, dummies: int = 1000) -> Tensor:
    """The number of samples of each class (Geng et al. 2021, at the server's weights), adding up to all samples.

    For a FedAvg update the mean gradient over the local steps takes the gradient's place.
    """
    if observation.data.classes is None or observation.training.loss != "cross_entropy":
        raise MissingKnowledge(
            "labels can only be inferred for classification with cross-entropy; "
            "supply them with observation.knowing(labels=...)"
        )
    samples = int(observation.training.need("samples"))
    name, layer = last_linear(observation.model, observation.data.classes)
    if not layer.weight.requires_grad:
        raise MissingKnowledge(
            f"labels cannot be inferred: the last layer, {name!r}, is not trained; "
            "supply them with observation.knowing(labels=...)"
        )
    gradient = observation.difference()
    if observation.kind == "weights":
        gradient = scale(gradient, 1 / (observation.training.need("lr") * observation.training.steps))
    bias = gradient.get(f"{name}.bias")
    if bias is not None and samples == 1:
        counts = torch.zeros(observation.data.classes, dtype=torch.long)
        counts[int(bias.argmin())] = 1
        return counts
    probabilities, activations = _statistics(observation, layer, dummies, generator)
    if bias is not None:
        estimate = probabilities - bias
    else:
        estimate = probabilities - gradient[f"{name}.weight"].sum(1) / activations
    return round_counts(samples * estimate, samples)


def last_linear(model: nn.Module, classes: int) -> tuple[str, nn.Linear]:
    """The linear layer with one output a class that a model ends in."""
    layers = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    with_parameters = [(name, module) for name, module in layers if list(module.parameters())]
    if with_parameters:
        name, module = with_parameters[-1]
        if isinstance(module, nn.Linear) and module.out_features == classes:
            return name, module
    raise MissingKnowledge(
        f"labels cannot be inferred: the model does not end in a linear layer with {classes} outputs; "
        "supply them with observation.knowing(labels=...)"
    )


def round_counts(estimate: Tensor, total: int) -> Tensor:
    """Whole numbers near an estimate that add up to ``total``: floor, none below zero, rest by largest remainder."""
    estimate = estimate.detach().double().cpu().nan_to_num().clamp_min(0)
    if float(estimate.sum()) > total:
        estimate = estimate * (total / estimate.sum())
    counts = estimate.floor().long()
    missing = total - int(counts.sum())
    order = torch.argsort(estimate - counts, descending=True, stable=True)
    for position in range(missing):
        counts[order[position % len(order)]] += 1
    return counts


def _statistics(
    observation: Observation, layer: nn.Linear, dummies: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The mean class probabilities, and the mean sum of what enters the last layer, for random inputs."""
    like = next(iter(observation.sent.values()))
    inputs = torch.randn(dummies, *observation.data.shape, generator=generator).to(like.device, like.dtype)
    entering: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: entering.append(arguments[0]))
    try:
        with torch.no_grad(), in_mode(observation.model, observation.training.mode):
            # Batch norm in train mode writes to its statistics: these are not the observation's own.
            buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
            weights = {**observation.sent, **buffers}
            outputs = [functional_call(observation.model, weights, (part,)) for part in inputs.split(250)]
    finally:
        hook.remove()
    activations = torch.cat(entering).flatten(1).sum(1).mean()
    return torch.cat(outputs).softmax(-1).mean(0), activations
