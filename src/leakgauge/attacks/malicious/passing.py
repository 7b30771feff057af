r"""Convolutions that pass a sample on to a dense layer, and the map with which a server undoes them.

A kernel with a single entry copies a plane of its input, or shifts it by a pixel. If a convolution and what follows it
reduce each dimension by a factor :math:`r`, a plane needs :math:`r` shifted copies in each dimension, so that no pixel
is lost. A bias keeps all values where the activation is a straight line. Nothing else is assumed about what lies
between two convolutions. The server tries some plants on samples of its own and measures whether the features are an
affine function of the sample. This refuses normalisation and maximum pooling in the way.

The server also measures this affine function, pixel by pixel, and solves it for the sample. It falls into blocks that
share no pixel and no feature, such as the planes of a colour picture, which are solved one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.malicious.layout import Layout, Stage, dummies, features_of, size_of

#: The largest number of values of a sample for which the map is measured.
MOST_VALUES = 4096
#: The features are an affine function of the sample if they differ from one by less than this share.
AFFINE = 2e-4
#: Directions of the sample that the features hold by less than this share are not solved for.
CONDITION = 1e-5


@dataclass(frozen=True)
class Plant:
    """A choice of kernels and biases.

    Args:
        own: Whether the kernels of the honest model are kept, so that only the biases change.
        gain: The entry of each planted kernel.
        offset: The smallest value before each activation. ``None`` sets no biases.
    """

    own: bool
    gain: float
    offset: float | None


#: The plants in the order in which they are tried: for ReLU, for smooth activations such as GELU, which are straight
#: far from zero, and for sigmoid and tanh, which are straight near zero.
PLANTS = (Plant(False, 1.0, 1.0), Plant(False, 1.0, 8.0), Plant(False, 2.0**-7, None), Plant(True, 1.0, 1.0))


def pass_on(model: nn.Module, layout: Layout, probes: Tensor, plants: tuple[Plant, ...] = PLANTS) -> str:
    """Set the convolutions of a model such that they pass samples on, and return the choice in words.

    Args:
        model: The model, which is changed.
        layout: Its layers.
        probes: Inputs of the model that the server has.
        plants: The choices to try.
    """
    if not layout.stages:
        if affine_error(model, layout, probes) < AFFINE:
            return "the dense layer gets the samples themselves"
        raise DoesNotFit("what lies before the dense layer is no affine function of the sample")
    honest = {name: value.clone() for name, value in model.state_dict().items()}
    for plant in plants:
        model.load_state_dict(honest)
        _set(model, layout, plant, probes)
        if affine_error(model, layout, probes) < AFFINE:
            return "the convolutions keep their kernels" if plant.own else "each kernel copies one plane"
    raise DoesNotFit(
        "the layers before the dense one cannot be made to pass the sample on, as with maximum pooling or "
        "normalisation between the convolutions"
    )


def affine_error(model: nn.Module, layout: Layout, probes: Tensor) -> float:
    """Return by how much the features differ from an affine function of the sample, as a share of their spread.

    Args:
        model: The model.
        layout: Its layers.
        probes: At least four inputs of the model.
    """
    first, second = probes[: len(probes) // 2], probes[len(probes) // 2 : len(probes) // 2 * 2]
    parts = [features_of(model, layout, part) for part in (first, second, 0.25 * first + 0.75 * second)]
    expected = 0.25 * parts[0] + 0.75 * parts[1]
    spread = (parts[0] - parts[1]).norm().clamp_min(1e-30)
    error = float((parts[2] - expected).norm() / spread)
    alive = float(spread / (1e-6 * parts[0].norm().clamp_min(1e-30)))
    return error if alive > 1 and math.isfinite(error) else math.inf


def _set(model: nn.Module, layout: Layout, plant: Plant, probes: Tensor) -> None:
    """Set the kernels and biases of all convolutions. Layer by layer, a bias follows the smallest possible value."""
    planes = layout.stages[0].seen[0]
    low, high = float(probes.min()), float(probes.max())
    for stage, reduction in zip(layout.stages, _reductions(layout), strict=True):
        layer = model.get_submodule(stage.path)
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        if not plant.own:
            planes = _copy_planes(layer, stage, planes, reduction, plant.gain)
        least = _least(weight, low, high)
        most = -_least(-weight, low, high)
        shift = torch.zeros_like(least)
        if plant.offset is not None and (float(least.min()) < plant.offset or plant.own):
            # A power of two keeps planted sums exact in single precision.
            need = plant.offset - float(least.min())
            shift = shift + (2.0 ** math.ceil(math.log2(need)) if need > 0 else 0.0)
        if isinstance(bias, Tensor):
            bias.copy_(shift)
        elif bool((shift != 0).any()):
            raise DoesNotFit("a convolution without a bias cannot keep its values where the activation is straight")
        low, high = min(0.0, float((least + shift).min())), float((most + shift).max())


def _least(weight: Tensor, low: float, high: float) -> Tensor:
    """Return the smallest output of each channel for inputs between two limits, or zero where inputs are padded."""
    rows = weight.flatten(1)
    positive, negative = rows.clamp_min(0).sum(1), rows.clamp_max(0).sum(1)
    return min(low, 0.0) * positive + max(high, 0.0) * negative


def _reductions(layout: Layout) -> Iterator[tuple[int, ...]]:
    """Yield by how much each dimension shrinks from the inputs of each convolution to those of the next layer."""
    for stage, after in itertools.pairwise(layout.stages):
        yield _ratio(stage.seen[1:], after.seen[1:])
    last = layout.stages[-1]
    positions = layout.features / last.given[0]
    total = math.prod(last.seen[1:])
    each = (total / positions) ** (1 / max(1, len(last.seen) - 1)) if positions >= 1 else 1.0
    yield tuple(max(1, math.ceil(each - 1e-9)) for _ in last.seen[1:])


def _ratio(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    if len(before) != len(after):
        raise DoesNotFit("the convolutions before the dense layer have different dimensions")
    return tuple(max(1, math.ceil(one / two)) for one, two in zip(before, after, strict=True))


def _copy_planes(layer: nn.Module, stage: Stage, planes: int, reduction: tuple[int, ...], gain: float) -> int:
    """Plant kernels that copy all planes with all shifts, as far as there are channels, and return their number."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    groups = int(getattr(layer, "groups", 1))
    if groups != 1 or weight.shape[1] < planes:
        raise DoesNotFit("the convolutions before the dense layer do not form a chain")
    weight.zero_()
    sizes = tuple(weight.shape[2:])
    begins = [min(int(size) // 2, max(0, int(size) - factor)) for size, factor in zip(sizes, reduction, strict=True)]
    shifts = itertools.product(*(range(min(factor, size)) for factor, size in zip(reduction, sizes, strict=True)))
    places = [(plane, shift) for shift in sorted(shifts, key=sum) for plane in range(planes)]
    for channel, (plane, shift) in enumerate(places[: len(weight)]):
        weight[(channel, plane, *(begin + step for begin, step in zip(begins, shift, strict=True)))] = gain
    return min(len(places), len(weight))


@dataclass(frozen=True)
class Decoder:
    """The solution of the measured map from samples to features.

    Args:
        blocks: For each block of the map, the features, the values of the sample, and the inverse.
        origin: The features of the sample of zeros.
        held: The share of the sample's values that the features hold.
        scale: The factor of each value, if the features are the scaled values themselves. There are then no blocks.
    """

    blocks: tuple[tuple[Tensor, Tensor, Tensor], ...]
    origin: Tensor
    held: float
    scale: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Return the inputs of the model, one row for each row of features.

        Args:
            features: The inputs of the trapped layer.
        """
        centred = features.to(self.origin) - self.origin
        if self.scale is not None:
            return centred / self.scale
        values = sum(len(columns) for _, columns, _ in self.blocks)
        total = max([values, *(int(columns.max()) + 1 for _, columns, _ in self.blocks)])
        inputs = centred.new_zeros(len(features), total)
        for rows, columns, inverse in self.blocks:
            inputs[:, columns] = centred[:, rows] @ inverse.T
        return inputs


def decoder_of(model: nn.Module, layout: Layout, shape: tuple[int, ...], noise: float = 0.0) -> Decoder:
    """Measure the affine map from samples to features, and return its solution.

    Args:
        model: The model, whose convolutions pass the sample on.
        layout: Its layers.
        shape: The shape of one sample.
        noise: The standard deviation of the error of a feature. Directions that the features hold by less are damped,
            for values of the sample with a standard deviation of 1.
    """
    values, like = size_of(shape), next(model.parameters())
    if not layout.stages and layout.features == values:
        scaled = _scaled(model, layout, shape)
        if scaled is not None:
            return scaled
    if values > MOST_VALUES:
        raise DoesNotFit(f"the map of samples with more than {MOST_VALUES:,} values is not measured")
    origin = features_of(model, layout, like.new_zeros(1, *shape))[0]
    units = torch.eye(values, dtype=like.dtype, device=like.device).reshape(values, *shape)
    answers = features_of(model, layout, units) - origin  # one row for each value of the sample
    answers = torch.where(answers.abs() > 1e-6 * answers.abs().max(), answers, answers.new_zeros(()))
    pairs = answers.nonzero().cpu().numpy()
    graph = coo_matrix((pairs[:, 0] * 0 + 1, (pairs[:, 0], pairs[:, 1] + values)), shape=(values + len(origin),) * 2)
    _, part = connected_components(graph, directed=False)
    blocks, held, parts = [], 0, torch.as_tensor(part, device=like.device)
    order = parts.sort(stable=True).indices
    for block in order.split(parts.bincount().tolist()):
        columns, rows = block[block < values], block[block >= values] - values
        if len(columns) and len(rows):
            inverse, rank = _inverse(answers[columns][:, rows].T.double(), noise)
            blocks.append((rows, columns, inverse))
            held += rank
    return Decoder(tuple(blocks), origin.double(), held / values)


def _scaled(model: nn.Module, layout: Layout, shape: tuple[int, ...]) -> Decoder | None:
    """Return the decoder of features that are the values of the sample in their order, with a factor and a shift."""
    drawn = dummies(model, shape)
    zero, one = (features_of(model, layout, value.expand_as(drawn)) for value in drawn.new_tensor([0.0, 1.0]))
    scale, seen = (one - zero)[0], features_of(model, layout, drawn)
    if bool((scale == 0).any()) or not torch.allclose(seen, zero + scale * drawn.flatten(1), rtol=1e-4, atol=1e-6):
        return None
    return Decoder((), zero[0].double(), 1.0, scale.double())


def _inverse(block: Tensor, noise: float) -> tuple[Tensor, int]:
    """Return the pseudo-inverse of a block of the map, and its rank. Noise damps it."""
    if block.numel() == 1:
        return block / (block.square() + noise**2), 1
    left, sizes, right = torch.linalg.svd(block, full_matrices=False)
    rank = int((sizes > CONDITION * sizes[0]).sum())
    return (right[:rank].T * (sizes[:rank] / (sizes[:rank].square() + noise**2))) @ left[:, :rank].T, rank
