r"""Estimates of the number of samples of each class, from the last layer of the update.

For cross-entropy after a linear layer with kernel :math:`W` and bias :math:`b` the mean gradient over :math:`N`
samples is

.. math::
    \partial \ell / \partial b_k = \bar p_k - \lambda_k / N, \qquad
    \textstyle\sum_j \partial \ell / \partial W_{kj} \approx O\,(\bar p_k - \lambda_k / N),

with :math:`\bar p_k` the mean predicted probability, :math:`\lambda_k` the number of samples of class :math:`k` and
:math:`O` the mean sum of the activations that enter the layer. For one sample, only the entry of its class is negative
(Zhao et al. 2020, iDLG). For several samples, :math:`\bar p` and :math:`O` are estimated with random dummy inputs:

==================  =======================================================================================
``"server"``        at the weights that the server sent (Geng et al. 2021)
``"client"``        at the weights that the client returned
``"interpolated"``  at both, and interpolated between the two for each local step (DLF, section 4.5)
==================  =======================================================================================

A model with one logit and binary cross-entropy is treated as a model with two logits, of which the first is always 0.
Label smoothing :math:`a` over :math:`K` classes replaces :math:`\lambda_k / N` by :math:`(1-a)\lambda_k / N + a / K`.
If the client uses Adam, the update shows little more than which classes the client has (``_counts_from_signs``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.attacks.inversion.known_defences import CLIPPING, known_defences
from leakgauge.attacks.inversion.last_layer import Part, last_layer
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.params import Params
from leakgauge.federation.training import in_mode

Place = Literal["server", "client", "interpolated"]
#: The error of the level up to which counts are raised together. It is far above the rounding errors of a billion.
_LEVEL = 1e-5
#: The usual number of dummy inputs, and the smallest number if samples have more than this many values. In 27 settings
#: with digits and colour pictures, the errors with 64 and with 3,000 dummy inputs differed by at most 2 per cent of the
#: labels, except in one setting where both were wrong for half of the labels (56 and 52 per cent).
USUAL, FEW, SMALL = 1000, 64, 3 * 32 * 32
#: The largest number of dummy inputs, and of their values, that pass through the model at a time.
_AT_A_TIME, _VALUES_AT_A_TIME = 250, 2**21
#: The number of values that are drawn at a time.
_DRAWN = 2**24


def number_of_dummies(shape: Sequence[int], dummies: int | None = None) -> int:
    """Return the number of random dummy inputs for samples of a shape.

    Args:
        shape: The shape of a sample.
        dummies: The number that the user chose. By default, it is 1000 for small samples, and less for large ones.
    """
    return dummies or max(FEW, min(USUAL, USUAL * SMALL // max(1, prod(shape))))


def dummies_at_a_time(shape: Sequence[int]) -> int:
    """Return the number of dummy inputs of a shape that pass through the model together.

    Args:
        shape: The shape of a sample.
    """
    # Batch norm in train mode needs several samples.
    return max(8, min(_AT_A_TIME, _VALUES_AT_A_TIME // max(1, prod(shape))))


def dummies_held(shape: Sequence[int], number: int) -> int:
    """Return the number of dummy inputs that are in memory together.

    Args:
        shape: The shape of a sample.
        number: The number of dummy inputs.
    """
    at_a_time = dummies_at_a_time(shape)
    return min(number, at_a_time * max(1, _DRAWN // (at_a_time * max(1, prod(shape)))))


def estimate_label_counts(
    observation: Observation,
    generator: torch.Generator,
    *,
    at: Place = "interpolated",
    read: Part | None = None,
    dummies: int | None = None,
) -> Tensor:
    """Estimate the number of samples of each class from the last layer's update.

    The counts add up to the number of samples. The formulas are at the top of this module. For a FedAvg update, they
    use the mean gradient over the local steps. If the attacker knows that the client clips its gradients, the length of
    the gradient before clipping is estimated first.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        generator: The random generator for the dummy inputs.
        at: The weights at which the dummy inputs are evaluated: ``"server"``, ``"client"`` or ``"interpolated"``, as in
            :class:`~leakgauge.attacks.inversion.labels.LastLayer`.
        read: The part of the last layer that is used, ``"bias"`` or ``"kernel"``. By default, the bias if there is one.
        dummies: The number of random dummy inputs. By default, that of :func:`number_of_dummies`.
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
    """Estimate the factor by which a clipped gradient must be multiplied to undo the clipping.

    The result is the largest factor for which no class has a count below zero. This factor is right if at least one
    class has no sample in the batch. There is such a class if the batch has fewer samples than there are classes.

    Args:
        expected: The mean predicted probability of each class.
        seen: The clipped gradient of the last layer for each class.
    """
    growing = seen > 0
    return float((expected[growing] / seen[growing]).min()) if bool(growing.any()) else 1.0


def _places(observation: Observation, at: Place) -> list[Params]:
    """Return the weights at which the dummy inputs are evaluated: the sent weights, the returned weights, or both."""
    if at == "server" or observation.returned is None:
        return [observation.sent]
    return [observation.returned] if at == "client" else [observation.sent, observation.returned]


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
    observation: Observation, weights: Params, layer: nn.Linear, dummies: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the mean class probabilities and the mean sum of the last layer's inputs, for random dummy inputs.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        weights: The weights of the model.
        layer: The last layer.
        dummies: The number of dummy inputs. By default, that of :func:`number_of_dummies`.
        generator: The random generator for the dummy inputs.
    """
    number = number_of_dummies(observation.data.shape, dummies)
    return _statistics(observation, weights, layer, _dummies(observation, number, generator))


def _dummies(observation: Observation, number: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield random dummy inputs. Only a part of them is held at a time."""
    like, shape = next(iter(observation.sent.values())), observation.data.shape
    at_a_time = dummies_at_a_time(shape)
    drawn = dummies_held(shape, number)
    for start in range(0, number, drawn):
        inputs = torch.randn(min(drawn, number - start), *shape, generator=generator)
        for part in inputs.split(at_a_time):
            yield part.to(like.device, like.dtype)


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
    return _statistics(observation, weights, layer, inputs.split(dummies_at_a_time(observation.data.shape)))


def _statistics(
    observation: Observation, weights: Params, layer: nn.Linear, batches: Iterable[Tensor]
) -> tuple[Tensor, Tensor]:
    entering: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: entering.append(arguments[0].flatten(1).sum(1)))
    outputs, count = [], 0
    try:
        with torch.no_grad(), in_mode(observation.model, observation.training.mode):
            # Batch norm in train mode changes its statistics, so the statistics are copied.
            buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
            for part in batches:
                outputs.append(functional_call(observation.model, {**weights, **buffers}, (part,)))
                count += len(part)
    finally:
        hook.remove()
    activations = torch.cat(entering).mean()
    logits = torch.cat(outputs)
    if observation.data.classes == 2 and logits.numel() == count:  # one logit z is the logits (0, z)
        logits = torch.stack([torch.zeros_like(logits), logits], -1).reshape(count, 2)
    return logits.softmax(-1).mean(0), activations
