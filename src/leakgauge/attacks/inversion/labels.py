r"""Which labels the client has, read from the last layer's part of the update.

For cross-entropy after a linear layer with kernel :math:`W` and bias :math:`b` the mean gradient over :math:`N`
samples is

.. math::
    \partial \ell / \partial b_k = \bar p_k - \lambda_k / N, \qquad
    \textstyle\sum_j \partial \ell / \partial W_{kj} \approx O\,(\bar p_k - \lambda_k / N),

with :math:`\bar p_k` the mean predicted probability, :math:`\lambda_k` the number of samples of class :math:`k`
and :math:`O` the mean sum of the activations that enter the layer. For one sample only its own class is
negative (Zhao et al. 2020, iDLG). For several, :math:`\bar p` and :math:`O` are estimated with random inputs:

==================  =======================================================================================
``"server"``        at the weights that were sent (Geng et al. 2021)
``"client"``        at the weights that came back
``"interpolated"``  at every local step, linearly between the two, and the counts averaged (DLF, section 4.5)
==================  =======================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.attacks.inversion.known_defences import CLIPPING, known_defences
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.federation.training import in_mode

Place = Literal["server", "client", "interpolated"]
Part = Literal["bias", "kernel"]


class Labels(Protocol):
    """Where an attack takes the labels from."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """One label (or regression target) for each of the client's samples.

        Where the observation grants the labels of every batch: for each sample of each epoch, one after another.
        """
        ...


@dataclass(frozen=True)
class Granted:
    """The labels, label counts or labels of every batch that the observation grants."""

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
    """The granted labels if there are any; otherwise those inferred from the last layer's update.

    ``at`` says where the statistics are taken (see the module's table); ``read`` whether the bias or the kernel
    is read, by default the bias where there is one. ``shuffle`` puts the labels into a random order, as batches
    that are cut from them want it (DLF's RandOrder); granted labels of every batch stay in theirs (appendix B.3).
    """

    at: Place = "interpolated"
    read: Part | None = None
    dummies: int = 1000
    shuffle: bool = False

    def __post_init__(self) -> None:
        whole_number("dummies", self.dummies)
        if self.at not in get_args(Place):
            raise UnknownName("place to take statistics", self.at, get_args(Place))
        if self.read is not None and self.read not in get_args(Part):
            raise UnknownName("part of the last layer", self.read, get_args(Part))

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Granted or inferred labels."""
        labels = granted_labels(observation)
        if labels is None:
            counts = estimate_label_counts(observation, generator, at=self.at, read=self.read, dummies=self.dummies)
            labels = torch.repeat_interleave(torch.arange(len(counts)), counts).to(observation.device)
        if self.shuffle and observation.label_batches is None:
            labels = labels[torch.randperm(len(labels), generator=generator).to(labels.device)]
        return labels


@dataclass(frozen=True)
class MostNegative:
    r"""The granted labels if there are any; otherwise the classes whose row of the last kernel's gradient has the
    most negative entry (Yin et al. 2021, equation 7, as AGIC uses it):

    .. math:: \hat y = \arg\mathrm{sort}_k \Big(\min_j \partial\ell / \partial W_{kj}\Big)_{[:N]}.

    What enters the last layer is not negative after ReLU, so that only a class that is present has such an entry.
    ``distinct`` takes the labels of a batch to differ, as the paper does. Otherwise every class with a negative entry
    is taken once, and the samples that remain go where the estimate of the counts misses most.
    """

    distinct: bool = False
    dummies: int = 1000

    def __post_init__(self) -> None:
        whole_number("dummies", self.dummies)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Granted or inferred labels."""
        labels = granted_labels(observation)
        if labels is not None:
            return labels
        samples = int(observation.training.need("samples"))
        lowest = observation.difference()[f"{last_layer(observation, 'kernel').name}.weight"].amin(1)
        order = lowest.argsort(stable=True)
        if self.distinct:
            if samples > len(order):
                raise InvalidInput(
                    f"{samples} samples cannot have distinct labels of {len(order)} classes; use distinct=False"
                )
            return order[:samples]
        counts = torch.zeros(len(order), dtype=torch.long)
        counts[order[: min(samples, max(1, int((lowest < 0).sum())))].cpu()] = 1
        estimate = estimate_label_counts(observation, generator, dummies=self.dummies)
        while int(counts.sum()) < samples:
            counts[int((estimate - counts).argmax())] += 1
        return torch.repeat_interleave(torch.arange(len(counts)), counts).to(observation.device)


def granted_labels(observation: Observation) -> Tensor | None:
    """The labels that the observation grants, as a list in no particular order; ``None`` if it grants none.

    Labels of every batch come first: those of each epoch in the order trained on, one epoch after another.
    """
    if observation.label_batches is not None:
        return observation.label_batches.flatten().long()
    if observation.labels is not None:
        return observation.labels
    if observation.label_counts is not None:
        counts = observation.label_counts
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return None


def rows_of_first_epoch(labels: Tensor) -> Tensor:
    """For each place of each epoch a place of the first that has the same label, no place twice in an epoch.

    ``labels`` is (epochs, samples), the same labels in every epoch. Of several with the same label the first is
    taken for the first, and so on: which of them is which, labels cannot tell.
    """
    order = labels.argsort(dim=1, stable=True)
    return torch.empty_like(order).scatter_(1, order, order[:1].expand_as(order))


def estimate_label_counts(
    observation: Observation,
    generator: torch.Generator,
    *,
    at: Place = "interpolated",
    read: Part | None = None,
    dummies: int = 1000,
) -> Tensor:
    """The number of samples of each class, adding up to all samples (see the module's formulas).

    For a FedAvg update the mean gradient over the local steps takes the gradient's place. Where the client is known to
    clip its gradients, their length is found first.
    """
    reading = last_layer(observation, read)
    samples = int(observation.training.need("samples"))
    seen = reading.mean_gradient(observation, observation.difference())
    if reading.part == "bias" and samples == 1:
        counts = torch.zeros(len(seen), dtype=torch.long)
        counts[int(seen.argmin())] = 1
        return counts
    places = _places(observation, at)
    draws = generator.get_state()  # the same dummies at both places
    statistics = []
    for weights in places:
        generator.set_state(draws)
        statistics.append(dummy_statistics(observation, weights, reading.layer, dummies, generator))
    probabilities, activations = (torch.stack(values) for values in zip(*statistics, strict=True))
    if len(places) == 2:
        steps = observation.training.steps
        share = torch.arange(steps, device=observation.device) / steps
        probabilities = torch.lerp(probabilities[0], probabilities[1], share.to(probabilities)[:, None])
        activations = torch.lerp(activations[0], activations[1], share.to(activations))
    if reading.part == "kernel":
        seen = (seen / activations[:, None]).mean(0)
    expected = probabilities.mean(0)
    if any(one.name in CLIPPING for one in known_defences(observation)):
        seen = seen * _unclipped(expected, seen)
    return round_counts(samples * (expected - seen), samples)


def _unclipped(expected: Tensor, seen: Tensor) -> float:
    """By how much clipping has shortened what is seen: the most that leaves no class with a count below zero.

    A class that the client does not have then has none, and there is one wherever a batch is smaller than the number
    of classes.
    """
    growing = seen > 0
    return float((expected[growing] / seen[growing]).min()) if bool(growing.any()) else 1.0


@dataclass(frozen=True, eq=False)
class LastLayerReading:
    """Where an update tells of labels: the bias of the last linear layer, or the row sums of its kernel."""

    name: str
    layer: nn.Linear
    part: Part

    def mean_gradient(self, observation: Observation, difference: Params) -> Tensor:
        """One number a class: the mean over the local steps that made this difference of the weights.

        With momentum a step's gradient counts as often as its velocity is applied.
        """
        value = difference[f"{self.name}.{'bias' if self.part == 'bias' else 'weight'}"]
        value = value if self.part == "bias" else value.sum(1)
        if observation.kind == "gradient":
            return value
        training = observation.training
        return value / (training.need("lr") * training.applied_gradients)


def last_layer(observation: Observation, read: Part | None = None) -> LastLayerReading:
    """Where labels can be read: by default from the bias where there is one. A clear refusal where nowhere."""
    if observation.data.classes is None or observation.training.loss != "cross_entropy":
        raise MissingKnowledge(
            "labels can only be inferred for classification with cross-entropy; "
            "supply them with observation.knowing(labels=...)"
        )
    name, layer = last_linear(observation.model, observation.data.classes)
    if not layer.weight.requires_grad:
        raise MissingKnowledge(
            f"labels cannot be inferred: the last layer, {name!r}, is not trained; "
            "supply them with observation.knowing(labels=...)"
        )
    trained_bias = layer.bias is not None and layer.bias.requires_grad
    if read == "bias" and not trained_bias:
        raise MissingKnowledge(f"labels cannot be read from the bias: the last layer, {name!r}, trains none")
    return LastLayerReading(name, layer, "bias" if trained_bias and read != "kernel" else "kernel")


def _places(observation: Observation, at: Place) -> list[Params]:
    """The weights at which statistics are taken."""
    if at == "server" or observation.returned is None:
        return [observation.sent]
    return [observation.returned] if at == "client" else [observation.sent, observation.returned]


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
    """Whole numbers near an estimate that add up to ``total``: none below zero, the rest by largest remainder.

    Where the whole parts are too many already, those with the smallest remainders give one back.
    """
    estimate = estimate.detach().double().cpu().nan_to_num().clamp(0, total)
    counts = estimate.floor().long()
    order = torch.argsort(estimate - counts, descending=True, stable=True).tolist()
    missing = total - int(counts.sum())
    while missing > 0:
        for position in order[:missing]:
            counts[position] += 1
        missing = total - int(counts.sum())
    while missing < 0:
        for position in [position for position in reversed(order) if counts[position] > 0][:-missing]:
            counts[position] -= 1
        missing = total - int(counts.sum())
    return counts


def dummy_statistics(
    observation: Observation, weights: Params, layer: nn.Linear, dummies: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The mean class probabilities, and the mean sum of what enters the last layer, for random inputs."""
    like = next(iter(observation.sent.values()))
    inputs = torch.randn(dummies, *observation.data.shape, generator=generator).to(like.device, like.dtype)
    return input_statistics(observation, weights, layer, inputs)


def input_statistics(
    observation: Observation, weights: Params, layer: nn.Linear, inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean class probabilities, and the mean sum of what enters the last layer, for these inputs."""
    entering: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: entering.append(arguments[0]))
    try:
        with torch.no_grad(), in_mode(observation.model, observation.training.mode):
            # Batch norm in train mode writes to its statistics: these are not the observation's own.
            buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
            outputs = [
                functional_call(observation.model, {**weights, **buffers}, (part,)) for part in inputs.split(250)
            ]
    finally:
        hook.remove()
    activations = torch.cat(entering).flatten(1).sum(1).mean()
    return torch.cat(outputs).softmax(-1).mean(0), activations
