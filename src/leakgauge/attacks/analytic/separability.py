"""The number of samples that the gradients of two dense layers show, and the number that they can separate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit, augmented, one_gradient_of
from leakgauge.attacks.analytic.layer_span import largest_rank, rank_of
from leakgauge.attacks.analytic.one_hot import one_hot_columns
from leakgauge.attacks.analytic.two_layers import TwoLayers
from leakgauge.core.observation import Observation

#: The rank of a gradient with more entries than this is not computed before an attack runs.
RANKED = 2_000_000
#: Singular values of the second layer's gradient below this many rounding errors are zero.
ROUNDING = 10.0


def ranks_of(
    matrices: Sequence[Tensor], precision: float, samples: int, chain: TwoLayers
) -> tuple[int, int, tuple[int, int]]:
    """Return the number of samples, the number of distinct samples that are visible, and the ranks of both gradients.

    The rank of a layer's gradient is lower than the number of distinct samples if the layer's inputs are linearly
    dependent, as rows of a table with one-hot columns, if the layer has few outputs, or if the model has learned some
    samples so well that their gradients are only rounding errors.

    Args:
        matrices: The gradients of both layers.
        precision: The relative precision of their values.
        samples: The number of samples, or 0 if it is unknown.
        chain: The two dense layers.
    """
    first = rank_of(matrices[0], precision, samples)
    values = [torch.linalg.svdvals(matrix) for matrix in matrices]
    second = int((values[1] > ROUNDING * precision * values[1][0]).sum())
    largest = min(separable_samples(chain), largest_rank(matrices[1]))
    without_noise = first < len(values[0]) and float(values[0][first]) < ROUNDING * precision * float(values[0][0])
    limited = second >= largest and second != samples
    distinct = second if without_noise and not limited else first
    distinct = min(distinct, samples or distinct)
    return samples or distinct, distinct, (min(first, distinct), max(1, min(distinct, second, largest)))


def separable_samples(chain: TwoLayers) -> int:
    """Return the largest number of samples for which the second layer's gradient gives enough equations.

    This is the largest possible rank of the gradient. It equals the number of the layer's outputs, or one less for an
    output layer with cross-entropy.

    Args:
        chain: The two dense layers.
    """
    outputs = chain.layer(chain.second).out_features
    is_last = chain.calls[-1][0] == chain.second
    return outputs - 1 if is_last and chain.loss == "cross_entropy" else outputs


def visible_samples(chain: TwoLayers, observation: Observation) -> str:
    """Return a note if the gradients of the two layers show fewer samples than there are.

    Some samples can then not be found, for example copies of other samples. The note is empty if all are visible. If
    the first layer's gradient has its full rank and there are still more samples, :class:`DoesNotFit` is raised.

    Args:
        chain: The two dense layers.
        observation: The message of the client.
    """
    gradient, samples = one_gradient_of(observation), observation.training.samples
    matrices = [augmented(gradient, path) for path in (chain.first, chain.second)]
    if samples is None or (matrices[0].numel() > RANKED and samples <= largest_rank(matrices[0])):
        return ""
    precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps / 2
    _, visible, (rank, _) = ranks_of(matrices, precision, samples, chain)
    if visible >= samples:
        return ""
    largest = largest_rank(matrices[0])
    if rank == largest:
        raise DoesNotFit(
            f"the gradient of the dense layer {chain.first!r} has a rank of at most {largest}, so it does not separate "
            f"{samples} samples"
        )
    return (
        f". The gradient shows {visible} of {samples} samples. The others are copies, were learned before, or are "
        "hidden by noise"
    )


def check_size(chain: TwoLayers, samples: int | None, most: int | None = None) -> None:
    """Raise :class:`DoesNotFit` if the client has more samples than the attack can solve for.

    Args:
        chain: The two dense layers.
        samples: The number of samples. ``None`` if it is unknown.
        most: The largest number of samples that the second layer allows. By default, only the first layer sets a limit.
    """
    width = chain.layer(chain.first).out_features
    if samples is not None and most is not None and samples > most:
        raise DoesNotFit(f"the dense layer {chain.second!r} separates at most {most} samples, and here are {samples}")
    separates = width if one_hot_columns(chain) is not None and most is not None else width // 2
    if samples is not None and samples > separates:
        raise DoesNotFit(f"{samples} samples are too many for the {width} neurons of the dense layer {chain.first!r}")
