"""The measurements with which a client looks for planted weights.

Each returns figures of layers. None of them reads names of layers. All look at what the layers do with samples, or at
rows of weights in a form that scales, orders and small noise do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

#: Rows are twins if the cosine between them is above this. Planted rows with a hundredth of noise still are.
TWIN = 0.995
#: The same for the correlation of their outputs, because honest units may all follow one feature of simple samples.
FOLLOWS = 0.9999
#: The smallest number of rows or entries of a layer that is looked at.
FEWEST = 8
#: The number of outputs of a convolution that are kept for each sample.
PLACES = 16
#: The number of pairs of samples on which a mixture is tried.
PAIRS = 16
#: A unit is rarely active if it is positive for at most this share of the samples.
RARE = 0.15
#: Values below this share of the largest count as zero.
ZERO = 1e-12

KERNELS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass
class Behaviour:
    """The outputs of a model's layers for some samples.

    Args:
        outputs: The outputs of each layer with a kernel, (samples, units), by its path and in the order of the calls.
        silent: The paths of the layers whose outputs have no effect on the outputs of the model for any sample.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


def behaviour_of(model: nn.Module, inputs: Tensor) -> Behaviour:
    """Return what a model does with samples.

    Args:
        model: The model, with the received weights, in the mode in which it is looked at.
        inputs: The inputs of the model.
    """
    seen = Behaviour()
    kept: dict[str, Tensor] = {}

    def hook(path: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            if path not in kept:
                kept[path] = output
                seen.outputs[path] = _units(module, output.detach())

        return record

    handles = [module.register_forward_hook(hook(path)) for path, module in _layers(model)]
    try:
        with torch.enable_grad():
            outputs = model(inputs.detach().requires_grad_(inputs.is_floating_point()))
            outputs = outputs if isinstance(outputs, Tensor) else None
            if outputs is not None:
                weights = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs) + 0.5
                wanted = [value for value in kept.values() if value.requires_grad]
                slopes = torch.autograd.grad((outputs * weights).square().sum(), wanted, allow_unused=True)
                by_layer = dict(zip([path for path, value in kept.items() if value.requires_grad], slopes, strict=True))
                seen.silent = tuple(path for path, slope in by_layer.items() if slope is not None and not slope.any())
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((path, module) for path, module in model.named_modules() if isinstance(module, KERNELS))


def _units(module: nn.Module, output: Tensor) -> Tensor:
    """Return the outputs of a layer as one row for each sample and place, and one column for each unit."""
    if isinstance(module, nn.Linear):
        return output.reshape(len(output), -1, output.shape[-1])[:, :PLACES].flatten(0, 1)
    flat = output.flatten(2)
    step = max(1, flat.shape[2] // PLACES)
    return flat[:, :, ::step].transpose(1, 2).flatten(0, 1)


def twin_rows(matrix: Tensor, limit: float = TWIN) -> float:
    """Return the share of rows that are a multiple of another row, apart from small noise.

    Args:
        matrix: The rows. Rows of zeros are left out.
        limit: The cosine above which rows are twins.
    """
    sizes = matrix.norm(dim=1)
    rows = matrix[sizes > ZERO * sizes.max().clamp_min(1e-30)]
    if len(rows) < FEWEST or rows.shape[1] < FEWEST:
        return 0.0
    rows = rows / rows.norm(dim=1, keepdim=True)
    alike = (rows @ rows.T).abs()
    alike.fill_diagonal_(0)
    return float((alike.amax(1) > limit).double().mean())


def static_twins(model: nn.Module) -> dict[str, float]:
    """Return the largest share of twins among the rows or the columns of each dense layer."""
    shares = {}
    for path, module in _layers(model):
        if isinstance(module, nn.Linear):
            weight = module.weight.detach().float()
            shares[path] = max(twin_rows(weight), twin_rows(weight.T))
    return shares


def twins_in_outputs(seen: Behaviour, model: nn.Module) -> dict[str, float]:
    """Return the share of the units of each dense layer whose outputs follow those of another unit.

    Args:
        seen: What the model did with samples.
        model: The model.
    """
    shares = {}
    for path, outputs in seen.outputs.items():
        if isinstance(model.get_submodule(path), nn.Linear) and len(outputs) >= 4 * FEWEST:
            centred = (outputs - outputs.mean(0)).float()
            moving = centred.std(0) > 1e-6 * outputs.abs().mean(0).clamp_min(1e-30)
            shares[path] = twin_rows(centred[:, moving].T, FOLLOWS) if int(moving.sum()) >= FEWEST else 0.0
    return shares


def rare_units(seen: Behaviour, model: nn.Module) -> dict[str, float]:
    """Return the share of units of each hidden dense layer that few samples activate, but some do.

    Args:
        seen: What the model did with samples.
        model: The model.
    """
    dense = [path for path in seen.outputs if isinstance(model.get_submodule(path), nn.Linear)]
    shares = {}
    for path in dense[:-1]:
        active = (seen.outputs[path] > 0).double().mean(0)
        if len(active) >= FEWEST:
            shares[path] = float(((active > 0) & (active <= RARE)).double().mean())
    return shares


def quiet_layers(seen: Behaviour, model: nn.Module) -> dict[str, float]:
    """Return, for each hidden dense layer, the mean share of the samples for which a unit is not active.

    Units that are never active are left out.

    Args:
        seen: What the model did with samples.
        model: The model.
    """
    dense = [path for path in seen.outputs if isinstance(model.get_submodule(path), nn.Linear)]
    shares = {}
    for path in dense[:-1]:
        active = (seen.outputs[path] > 0).double().mean(0)
        if int((active > 0).sum()) >= FEWEST:
            shares[path] = 1 - float(active[active > 0].mean())
    return shares


def transmit_ratios(model: nn.Module) -> dict[str, float]:
    """Return, for each convolution, the median ratio of the largest entry's square to the sum of all other squares.

    A kernel that copies a pixel has one large entry.
    """
    ratios = {}
    for path, module in _layers(model):
        if isinstance(module, nn.Linear):
            continue
        weight = module.weight
        assert isinstance(weight, Tensor)
        squares = weight.detach().double().flatten(1).square()
        squares = squares[squares.sum(1) > ZERO * squares.sum(1).max().clamp_min(1e-300)]
        if squares.shape[1] >= FEWEST and len(squares):
            largest = squares.amax(1)
            rest = (squares.sum(1) - largest).clamp_min(1e-12 * largest)
            ratios[path] = float((largest / rest).clamp_max(1e12).median())
    return ratios


def affine_error(model: nn.Module, inputs: Tensor) -> float:
    """Return by how much what reaches the first dense layer differs from an affine function of the sample.

    The result is infinite if there is no such layer behind a convolution.

    Args:
        model: The model.
        inputs: At least four inputs of the model.
    """
    half = min(len(inputs) // 2, PAIRS)
    first, second = inputs[:half], inputs[half : 2 * half]
    together = _dense_inputs(model, torch.cat([first, second, 0.3 * first + 0.7 * second]))
    if together is None:
        return math.inf
    one, two, mixed = together.double().split(half)
    spread = float((one - two).norm())
    if not spread > 1e-9 * float(one.norm()) or not math.isfinite(spread):
        return math.inf
    return float((mixed - 0.3 * one - 0.7 * two).norm()) / spread


class _Reached(Exception):
    """The exception that ends a forward pass, and holds the inputs of a layer or ``None``."""

    def __init__(self, inputs: Tensor | None) -> None:
        self.inputs = inputs


def _dense_inputs(model: nn.Module, inputs: Tensor) -> Tensor | None:
    """Return the inputs of the first dense layer that gets one vector for each sample, behind a convolution."""
    convolved = False

    def stop(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        nonlocal convolved
        if not isinstance(module, nn.Linear):
            convolved = True
        elif arguments[0].dim() == 2:
            raise _Reached(arguments[0] if convolved else None)

    handles = [module.register_forward_pre_hook(stop) for _, module in _layers(model)]
    try:
        with torch.no_grad():
            model(inputs)
    except _Reached as reached:
        return reached.inputs
    finally:
        for handle in handles:
            handle.remove()
    return None


def disaggregation(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Return D-SNR: in some layer, a sample's gradient divided by that of all others together (Garov et al. 2024).

    Args:
        model: The model.
        inputs: The inputs of a batch.
        targets: Their classes.
    """
    weights = [module.weight for _, module in _layers(model) if isinstance(module.weight, Tensor)]
    trained = [weight for weight in weights if weight.requires_grad]
    each = []
    for sample, target in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(sample[None]), target[None])
        each.append(torch.autograd.grad(loss, trained, allow_unused=True))
    largest = 0.0
    for values in zip(*each, strict=True):
        if any(value is None for value in values):
            continue
        stacked = torch.stack([value.flatten() for value in values if value is not None])
        others = (stacked.sum(0) - stacked).norm(dim=1).clamp_min(1e-30)
        largest = max(largest, float((stacked.norm(dim=1) / others).max()))
    return largest
