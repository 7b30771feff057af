r"""Methods that infer the client's labels from the last layer of the update.

For cross-entropy after a linear layer with kernel :math:`W` and bias :math:`b` the mean gradient over :math:`N`
samples is

.. math::
    \partial \ell / \partial b_k = \bar p_k - \lambda_k / N, \qquad
    \textstyle\sum_j \partial \ell / \partial W_{kj} \approx O\,(\bar p_k - \lambda_k / N),

with :math:`\bar p_k` the mean predicted probability, :math:`\lambda_k` the number of samples of class :math:`k` and
:math:`O` the mean sum of the activations that enter the layer. For one sample only the entry of its class is negative
(Zhao et al. 2020, iDLG). For several samples, :math:`\bar p` and :math:`O` are estimated with random dummy inputs:

==================  =======================================================================================
``"server"``        at the weights that the server sent (Geng et al. 2021)
``"client"``        at the weights that the client returned
``"interpolated"``  at both, and interpolated between the two for each local step (DLF, section 4.5)
==================  =======================================================================================

A model with one logit and binary cross-entropy is treated as a model with two logits, of which the first is always 0.
Label smoothing :math:`a` over :math:`K` classes replaces :math:`\lambda_k / N` by :math:`(1-a)\lambda_k / N + a / K`.
An update of Adam shows little more than which classes the client has (:func:`_counts_from_signs`).
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
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.params import Params
from leakgauge.federation.training import in_mode

Place = Literal["server", "client", "interpolated"]
Part = Literal["bias", "kernel"]
#: The error of the level up to which counts are raised together. It is far above the rounding errors of a billion.
_LEVEL = 1e-5


class Labels(Protocol):
    """A source of labels for an attack."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return one label (or regression target) for each of the client's samples.

        If the attacker is given the labels of every batch, the result has one label for each sample of each epoch, one
        epoch after another.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        ...


@dataclass(frozen=True)
class Granted:
    """A source of labels for an attacker who is given labels, label counts or the labels of every batch."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the labels that the attacker is given. Label counts are converted to labels, class by class."""
        labels = granted_labels(observation)
        if labels is None:
            raise MissingKnowledge(
                "this attack needs the client's labels, which this observation does not grant. "
                "Supply them with observation.knowing(labels=...), or choose an attack that infers them"
            )
        return labels


@dataclass(frozen=True)
class LastLayer:
    """A source of labels. It returns the labels that are given, or infers labels from the last layer's update.

    Args:
        at: The weights at which random dummy inputs are evaluated to estimate mean predictions. ``"server"`` are the
            sent weights, ``"client"`` the returned weights, and ``"interpolated"`` interpolates between both.
        read: The part of the last layer whose update is read, ``"bias"`` or ``"kernel"``. By default, the bias if the
            layer has one, and otherwise the kernel.
        dummies: The number of random dummy inputs.
        shuffle: Whether the labels are put into a random order (DLF's RandOrder). If the attacker is given the labels
            of every batch, these labels keep their order (appendix B.3).
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
        """Return the given or inferred labels.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        labels = granted_labels(observation)
        if labels is None:
            counts = estimate_label_counts(observation, generator, at=self.at, read=self.read, dummies=self.dummies)
            labels = torch.repeat_interleave(torch.arange(len(counts)), counts).to(observation.device)
        if self.shuffle and observation.label_batches is None:
            labels = labels[torch.randperm(len(labels), generator=generator).to(labels.device)]
        return labels


@dataclass(frozen=True)
class MostNegative:
    r"""A source of labels. It returns the labels that are given, or the classes with the most negative gradients.

    Each class has one row of entries in the gradient of the last kernel. For :math:`N` samples, the method takes the
    :math:`N` classes whose smallest entries are lowest (Yin et al. 2021, equation 7, as in AGIC):

    .. math:: \hat y = \arg\mathrm{sort}_k \Big(\min_j \partial\ell / \partial W_{kj}\Big)_{[:N]}

    After ReLU, the inputs of the last layer are not negative. Only a class with samples in the batch can then have a
    negative entry.

    Args:
        distinct: Whether the attack assumes that all labels of a batch differ, as in the paper. Otherwise each class
            with a negative entry gets one sample. The remaining samples go to the classes whose counts so far are
            furthest below the estimated counts.
        dummies: The number of random dummy inputs with which the counts are estimated.
    """

    distinct: bool = False
    dummies: int = 1000

    def __post_init__(self) -> None:
        whole_number("dummies", self.dummies)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the given or inferred labels.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        labels = granted_labels(observation)
        if labels is not None:
            return labels
        samples = int(observation.training.need("samples"))
        lowest = last_layer(observation, "kernel").rows(observation.difference()).amin(1)
        order = lowest.argsort(stable=True)
        if self.distinct:
            if samples > len(order):
                raise InvalidInput(
                    f"{samples} samples cannot have distinct labels of {len(order)} classes. Use distinct=False"
                )
            return order[:samples]
        counts = torch.zeros(len(order), dtype=torch.long)
        counts[order[: min(samples, max(1, int((lowest < 0).sum())))].cpu()] = 1
        estimate = estimate_label_counts(observation, generator, dummies=self.dummies)
        counts = raise_counts(counts, estimate, samples)
        return torch.repeat_interleave(torch.arange(len(counts)), counts).to(observation.device)


def granted_labels(observation: Observation) -> Tensor | None:
    """Return the labels that the attacker is given, or ``None`` if no labels are given.

    If the labels of every batch are given, they are returned in the order of training, one epoch after another.
    Otherwise the labels are in no particular order.
    """
    if observation.label_batches is not None:
        return observation.label_batches.flatten().long()
    if observation.labels is not None:
        return observation.labels if observation.data.classes is None else observation.labels.long()
    if observation.label_counts is not None:
        counts = observation.label_counts.long()
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return None


def rows_of_first_epoch(labels: Tensor) -> Tensor:
    """Match the samples of every epoch to samples of the first epoch by their labels.

    The result holds, for each position in each epoch, a position in the first epoch with the same label. Within an
    epoch, no position of the first epoch is used twice. Labels cannot distinguish samples with the same label, so these
    samples keep their order.

    Args:
        labels: The labels of all epochs, (epochs, samples). Every epoch has the same labels in any order.
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
    """Estimate the number of samples of each class from the last layer's update.

    The counts add up to the number of samples. The formulas are at the top of this module. For a FedAvg update, they
    use the mean gradient over the local steps. If the attacker knows that the client clips its gradients, the length of
    the gradient before clipping is estimated first.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        generator: The random generator for the dummy inputs.
        at: The weights at which the dummy inputs are evaluated, as in :class:`LastLayer`.
        read: The part of the last layer that is read, as in :class:`LastLayer`.
        dummies: The number of random dummy inputs.
    """
    reading = last_layer(observation, read)
    samples = int(observation.training.need("samples"))
    if reading.part == "bias" and samples == 1:
        seen = reading.values(observation.difference())
        counts = torch.zeros(len(seen), dtype=torch.long)
        counts[int(seen.argmin())] = 1
        return counts
    seen = reading.mean_gradient(observation, observation.difference())
    places = _places(observation, at)
    draws = generator.get_state()  # the same dummy inputs at all weights
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
    smoothing = float(observation.training.label_smoothing or 0.0)
    expected = probabilities.mean(0) - smoothing / len(seen)
    if observation.kind == "weights" and optimiser_of(observation) != "sgd":
        return _counts_from_signs(expected, seen, samples)
    if any(defence.name in CLIPPING for defence in known_defences(observation)):
        seen = seen * _unclipped(expected, seen)
    elif observation.training.clip_norm:
        # If the client has many samples of each class, no class may be empty. Then half the factor is in the middle.
        seen = seen * _unclipped(expected, seen) * (1.0 if samples < 2 * len(seen) else 0.5)
    return round_counts(samples * (expected - seen) / (1 - smoothing), samples)


def _counts_from_signs(expected: Tensor, seen: Tensor, samples: int) -> Tensor:
    """Return label counts from an update of Adam, which changes the bias of every class by nearly the same amount.

    The entry of a class is negative if the class has more samples than the model predicts, and positive if the class
    has fewer. A class with a positive entry gets half of the predicted samples, which is the middle of the possible
    counts. Each class with a negative entry gets at least one sample. These classes share the remaining samples in
    proportion to the sizes of their entries.

    Args:
        expected: The mean predicted probability of each class.
        seen: The mean update of the last layer for each class.
        samples: The number of samples.
    """
    present = (-seen).clamp_min(0)
    if not bool(present.any()):
        return round_counts(samples * expected, samples)
    fewer = torch.where(present > 0, 0.0, samples * expected.clamp_min(0) / 2)
    estimate = (fewer + (samples - fewer.sum()) * present / present.sum()).double().cpu()
    counts = torch.zeros(len(present), dtype=torch.long)
    counts[present.argsort(descending=True, stable=True)[: min(samples, int((present > 0).sum()))].cpu()] = 1
    return raise_counts(counts, estimate, samples)


def _unclipped(expected: Tensor, seen: Tensor) -> float:
    """Return the factor by which a clipped gradient is multiplied to undo the clipping.

    The result is the largest factor for which no class has a count below zero. With this factor, a class without
    samples has a count of zero. Such a class exists if the batch is smaller than the number of classes.
    """
    growing = seen > 0
    return float((expected[growing] / seen[growing]).min()) if bool(growing.any()) else 1.0


@dataclass(frozen=True, eq=False)
class LastLayerReading:
    """The part of an update from which labels are inferred. It is the last bias, or the row sums of the last kernel.

    Args:
        name: The name of the layer.
        layer: The layer.
        part: The part of the layer that is read, ``"bias"`` or ``"kernel"``.
    """

    name: str
    layer: nn.Linear
    part: Part

    def rows(self, difference: Params) -> Tensor:
        """Return the rows of the last kernel's update, one for each class.

        A layer with one logit for two classes has one row g. The result then has the rows -g and g.

        Args:
            difference: The difference of the sent and the returned weights, or the gradient of a FedSGD client.
        """
        value = difference[f"{self.name}.weight"]
        return torch.cat([-value, value]) if self.layer.out_features == 1 else value

    def values(self, difference: Params) -> Tensor:
        """Return the update of the last bias, or the row sums of the last kernel's update, one value for each class.

        Args:
            difference: The difference of the sent and the returned weights, or the gradient of a FedSGD client.
        """
        if self.part == "kernel":
            return self.rows(difference).sum(1)
        value = difference[f"{self.name}.bias"]
        return torch.cat([-value, value]) if self.layer.out_features == 1 else value

    def mean_gradient(self, observation: Observation, difference: Params) -> Tensor:
        """Return the mean gradient over the local steps, with one value for each class.

        With momentum, the client applies each gradient again in later steps. The mean counts every application.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            difference: The difference of the sent and the returned weights, or the gradient of a FedSGD client.
        """
        value = self.values(difference)
        if observation.kind == "gradient":
            return value
        training = observation.training
        return value / (training.need("lr") * training.applied_gradients)


def last_layer(observation: Observation, read: Part | None = None) -> LastLayerReading:
    """Return the part of the last layer from which labels can be inferred.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        read: The part to read. By default, the bias if the layer has one, and otherwise the kernel.

    Raises:
        MissingKnowledge: If labels cannot be inferred from this model and loss.
    """
    outputs = outputs_for_labels(observation)
    if outputs is None:
        raise MissingKnowledge(
            "labels can only be inferred for classification with cross-entropy. "
            'Grant them ([attacker] granted = ["labels"] in TOML, observation.knowing(labels=...) in Python)'
        )
    name, layer = last_linear(observation.model, outputs)
    if not layer.weight.requires_grad:
        raise MissingKnowledge(
            f"labels cannot be inferred, because the last layer, {name!r}, is not trained. "
            "Supply them with observation.knowing(labels=...)"
        )
    trained_bias = layer.bias is not None and layer.bias.requires_grad
    if read == "bias" and not trained_bias:
        raise MissingKnowledge(f"labels cannot be read from the bias, because the last layer, {name!r}, trains none")
    return LastLayerReading(name, layer, "bias" if trained_bias and read != "kernel" else "kernel")


def outputs_for_labels(observation: Observation) -> int | None:
    """Return the number of model outputs from which labels are inferred, or ``None`` if the loss does not allow it.

    The result is the number of classes for cross-entropy, and 1 for binary cross-entropy with two classes.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    classes, loss = observation.data.classes, observation.training.loss
    if classes == 2 and loss == "binary_cross_entropy":
        return 1
    return classes if loss == "cross_entropy" else None


def _places(observation: Observation, at: Place) -> list[Params]:
    """Return the weights at which the dummy inputs are evaluated, which are the sent or returned weights, or both."""
    if at == "server" or observation.returned is None:
        return [observation.sent]
    return [observation.returned] if at == "client" else [observation.sent, observation.returned]


def last_linear(model: nn.Module, outputs: int) -> tuple[str, nn.Linear]:
    """Return the name of a model's last linear layer, and the layer itself.

    Args:
        model: The model.
        outputs: The number of outputs that the layer must have.
    """
    layers = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    with_parameters = [(name, module) for name, module in layers if list(module.parameters())]
    if with_parameters:
        name, module = with_parameters[-1]
        if isinstance(module, nn.Linear) and module.out_features == outputs:
            return name, module
    raise MissingKnowledge(
        f"labels cannot be inferred, because the model does not end in a linear layer with {outputs} "
        f"output{'s' * (outputs > 1)}. Supply them with observation.knowing(labels=...)"
    )


def round_counts(estimate: Tensor, total: int) -> Tensor:
    """Round estimated counts to non-negative integers with a given sum, by the largest-remainder method.

    If the sum of the integer parts already exceeds the total, the counts with the smallest remainders are reduced by
    one.

    Args:
        estimate: The estimated count of each class.
        total: The sum of the rounded counts.
    """
    estimate = estimate.detach().double().cpu().nan_to_num().clamp(0, total)
    counts = estimate.floor().long()
    order = torch.argsort(estimate - counts, descending=True, stable=True).tolist()
    missing = total - int(counts.sum())
    if missing > 0:
        counts += missing // len(counts)
        counts[order[: missing % len(counts)]] += 1
    while missing < 0:
        positive = counts > 0
        share = min(-missing // int(positive.sum()), int(counts[positive].min()))  # from every positive count at once
        counts[positive] -= share
        if share == 0:
            for position in [position for position in reversed(order) if counts[position] > 0][:-missing]:
                counts[position] -= 1
        missing = total - int(counts.sum())
    return counts


def raise_counts(counts: Tensor, estimate: Tensor, total: int) -> Tensor:
    """Raise counts until they have a given sum, one by one, each time the count furthest below its estimate.

    The work does not depend on the sum, because all but the last few ones are added together.

    Args:
        counts: The count of each class so far.
        estimate: The estimated count of each class.
        total: The sum of the raised counts.
    """
    counts, below = counts.clone(), estimate.double() - counts
    missing = total - int(counts.sum())
    if missing > len(counts):
        low, high = float(below.min()) - missing - 1, float(below.max())
        while high - low > _LEVEL:  # the lowest level above which no more than the missing ones fit
            middle = (low + high) / 2
            fits = float((below - middle).clamp_min(0).floor().sum()) <= missing
            low, high = (low, middle) if fits else (middle, high)
        counts += (below - high).clamp_min(0).floor().long()
    while int(counts.sum()) < total:
        counts[int((estimate - counts).argmax())] += 1
    return counts


def dummy_statistics(
    observation: Observation, weights: Params, layer: nn.Linear, dummies: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the mean class probabilities and the mean sum of the last layer's inputs, for random dummy inputs.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        weights: The weights of the model.
        layer: The last layer.
        dummies: The number of dummy inputs.
        generator: The random generator for the dummy inputs.
    """
    like = next(iter(observation.sent.values()))
    inputs = torch.randn(dummies, *observation.data.shape, generator=generator).to(like.device, like.dtype)
    return input_statistics(observation, weights, layer, inputs)


def input_statistics(
    observation: Observation, weights: Params, layer: nn.Linear, inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the mean class probabilities and the mean sum of the last layer's inputs, for given inputs.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        weights: The weights of the model.
        layer: The last layer.
        inputs: The inputs of the model.
    """
    entering: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: entering.append(arguments[0]))
    try:
        with torch.no_grad(), in_mode(observation.model, observation.training.mode):
            # Batch norm in train mode changes its statistics, so the statistics are copied.
            buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
            outputs = [
                functional_call(observation.model, {**weights, **buffers}, (part,)) for part in inputs.split(250)
            ]
    finally:
        hook.remove()
    activations = torch.cat(entering).flatten(1).sum(1).mean()
    logits = torch.cat(outputs)
    if observation.data.classes == 2 and logits.numel() == len(inputs):  # one logit z is the logits (0, z)
        logits = torch.stack([torch.zeros_like(logits), logits], -1).reshape(len(inputs), 2)
    return logits.softmax(-1).mean(0), activations
