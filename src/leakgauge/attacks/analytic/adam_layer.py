r"""The inputs of a dense first layer, from the update of Adam for a single sample.

A step of Adam divides each gradient by its own size. The change of a weight is nearly the learning rate, whatever the
gradient is. Only nearly, because Adam adds :math:`\varepsilon` to the size. For one sample with the inputs :math:`x_j`
of the layer, the gradient of neuron :math:`k` is :math:`\delta_k x_j`. With :math:`x_j = 1` for the bias, one step
changes the weights by the learning rate times

.. math:: u_{kj} = \frac{\delta_k x_j}{|\delta_k x_j| + \varepsilon}, \qquad
          |u_{kj}| = \frac{1}{1 + r_k y_j}, \qquad r_k = \frac{\varepsilon}{|\delta_k|}, \quad y_j = \frac{1}{|x_j|} .

The term :math:`r_k y_j` is small, often 1e-6, and returned weights are rounded. But the rounding error of each entry is
known, and every neuron measures the same :math:`y_j`. The weighted least-squares fit of all :math:`r_k` and :math:`y_j`
therefore determines :math:`y_j / y_{bias} = 1 / |x_j|`. It needs neither :math:`\varepsilon` nor the learning rate. The
signs of :math:`x_j` are signs of the entries, and an input of exactly 0 leaves its weights unchanged.

After several steps, the gradients :math:`\delta_k` of each step differ, and :math:`x` does not. Then

.. math:: |u_{kj}| = U_k - C_k\, y_j + O(\varepsilon^2),

with unknown numbers :math:`U_k` and :math:`C_k`. The fit determines :math:`y` up to a stretch about the bias,
:math:`y_j = 1 + t h_j` with one unknown number :math:`t`. The simulated network determines :math:`t`
(:mod:`.adam_message`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.local_training import LocalTraining

#: The number of alternating steps of the fits. The fit of one step continues, up to the second number, until its mean
#: squared residual falls by less than the third number.
ITERATIONS, MOST_ITERATIONS, STALLED = 60, 2000, 1e-4
#: The largest factor by which a fitted number changes in one step.
STRIDE = 3.0
#: An entry has changed if it is larger than this many rounding errors.
CHANGED = 8.0
#: The relative rounding errors of a client's arithmetic in one step of Adam, in units of its precision.
ARITHMETIC = 1.25


@dataclass(frozen=True, eq=False)
class Rows:
    """The update of a dense layer with a bias, in units of the learning rate.

    Args:
        updates: The decrease of each weight, with one row for each neuron. The last column is the bias.
        noise: The standard deviation of the rounding error of each entry.
    """

    updates: Tensor
    noise: Tensor

    def live(self) -> tuple[Rows, Tensor]:
        """Return the rows of changed neurons and the columns of changed inputs, and whether each input has changed."""
        neurons = self.changed_neurons()
        inputs = (self.updates[neurons].abs() > CHANGED * self.noise[neurons]).any(0)
        return Rows(self.updates[neurons][:, inputs], self.noise[neurons][:, inputs]), inputs

    def changed_neurons(self) -> Tensor:
        """Return whether the bias of each neuron has changed."""
        return self.updates[:, -1].abs() > CHANGED * self.noise[:, -1]

    def aligned(self) -> tuple[Tensor, Tensor]:
        """Return the updates with the signs of the neurons and of the inputs divided out, and the signs of the inputs.

        The gradient of the loss with respect to a neuron has the sign of its bias.
        """
        turned = self.updates * self.updates[:, -1:].sign()
        signs = turned.sign().sum(0).sign()
        return turned * signs, signs

    def without_decayed(self, pull: Tensor) -> Rows:
        """Return the rows with zeros for neurons and inputs that only Adam's weight decay has changed.

        Args:
            pull: The part of each gradient that the weight decay adds.
        """
        same = self.updates.sign() == pull.sign()
        neurons = ~same.all(1)
        inputs = ~same[neurons].all(0)
        return Rows(self.updates * neurons[:, None] * inputs, self.noise)

    def uncertain(self, pull: Tensor, share: float) -> Rows:
        """Return the rows with more noise, for a share of Adam's weight decay that is not corrected.

        Args:
            pull: The part of each gradient that the weight decay adds, in units of eps.
            share: The share of this part.
        """
        distance = (1 - self.updates.abs()).abs()  # about the inverse of the gradient in units of eps
        return Rows(self.updates, (self.noise.square() + (share * distance.square() * pull).square()).sqrt())

    def corrected(self, gradients: Tensor, pull: Tensor) -> Rows:
        """Return the rows that gradients without Adam's weight decay would have caused.

        With the decay, the distance of an entry from 1 is larger or smaller by the ratio of both gradients. Entries at
        which the decay turns the sign of the gradient get a large noise.

        Args:
            gradients: The estimated gradients without the weight decay.
            pull: The part of each gradient that the weight decay adds.
        """
        ratio = torch.where(gradients == 0, 1.0, (gradients + pull) / gradients)
        turned, ratio = ratio <= 0, ratio.abs().clamp(1e-3, 1e3)
        updates = self.updates.sign() * (1 - (1 - self.updates.abs()) * ratio)
        return Rows(torch.where(turned, -updates, updates), torch.where(turned, 1.0, self.noise * ratio))


@dataclass(frozen=True, eq=False)
class Fitted:
    """The inputs of a layer, from one step.

    Args:
        values: The inputs.
        errors: The estimated standard deviation of the error of each input.
        neurons: The gradient of each neuron in units of eps. It is 0 for neurons whose weights have not changed.
        amplitude: The size of an entry without rounding and with an infinite gradient. It is 1 if the learning rate is
            right.
        misfit: The mean squared residual, in units of the rounding error. It is near 1 if there is nothing but
            rounding.
    """

    values: Tensor
    errors: Tensor
    neurons: Tensor
    amplitude: float
    misfit: float

    @property
    def relative_error(self) -> float:
        """The estimated length of the error as a share of the length of the inputs."""
        return float(self.errors.norm() / self.values.norm().clamp_min(1e-300))


def rounding(weights: Tensor) -> Tensor:
    """Return the distance of each weight from the next larger number of its type, in double precision.

    Args:
        weights: The weights, in the precision in which they were returned.
    """
    info = torch.finfo(weights.dtype)
    exponent = torch.frexp(weights.double().abs().clamp_min(info.tiny)).exponent.double()
    return torch.exp2(exponent - 1) * info.eps


def noise_of(sent: Tensor, returned: Tensor, lr: float, roundings: int) -> Tensor:
    """Return the standard deviation of the rounding error of an update, in units of the learning rate.

    Each step rounds a weight to the nearest number of its type, and computes with this precision.

    Args:
        sent: The weights that the server sent.
        returned: The weights that the client returned.
        lr: The learning rate.
        roundings: The number of times that each weight is rounded.
    """
    gap = rounding(returned) if roundings == 1 else torch.maximum(rounding(sent), rounding(returned))
    arithmetic = ARITHMETIC * torch.finfo(returned.dtype).eps * roundings
    return ((gap / lr).square() * roundings / 12 + arithmetic**2).sqrt()


def decay_factor(training: LocalTraining, lr: float, dtype: torch.dtype) -> float:
    """Return the factor by which AdamW shrinks weights in one step, as the client rounds it. It is 1 for Adam.

    Args:
        training: The settings of the client's training.
        lr: The learning rate of the step.
        dtype: The type of the weights.
    """
    if training.optimiser != "adamw" or not training.weight_decay:
        return 1.0
    return float(torch.tensor(1 - lr * float(training.weight_decay), dtype=dtype))


def roundings_of(training: LocalTraining) -> int:
    """Return the number of times that local training rounds each weight.

    Each step rounds once, and once more if AdamW shrinks the weights. The first shrinkage is repeated exactly.

    Args:
        training: The settings of the client's training.
    """
    decays = training.optimiser == "adamw" and bool(training.weight_decay)
    return training.steps + (training.steps - 1 if decays else 0)


def fit_one_step(rows: Rows) -> Fitted:
    """Return the inputs of a layer from one step of Adam on one sample, with their estimated errors.

    Args:
        rows: The update of the layer.
    """
    live, changed = rows.live()
    values, errors = torch.zeros(2, rows.updates.shape[1], dtype=torch.double, device=changed.device)
    if not len(live.updates) or not bool(changed[-1]):
        return Fitted(values[:-1], errors[:-1], rows.updates[:, 0] * 0, 1.0, torch.inf)
    sizes, signs = live.aligned()
    weight = live.noise.square().reciprocal()
    amplitude, share, inverse = _rank_one(sizes, weight)
    fit = amplitude / (1 + share * inverse)
    slopes = fit.square() * share / amplitude
    spread = (weight * slopes.square()).sum(0).clamp_min(1e-300).rsqrt() / inverse[0]
    values[changed] = signs * inverse[0, -1] / inverse[0]
    errors[changed] = values[changed].abs() * (spread.square() + spread[-1].square()).sqrt()
    free = max(1, sizes.numel() - sum(sizes.shape))
    misfit = float((weight * (sizes - fit).square()).sum()) / free
    neurons = torch.zeros_like(rows.updates[:, 0])
    neurons[rows.changed_neurons()] = live.updates[:, -1].sign() / (share[:, 0] * inverse[0, -1])
    return Fitted(values[:-1], errors[:-1], neurons, float(amplitude), misfit)


def _rank_one(sizes: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the amplitude, the share of each row and the value of each column with the nearest product.

    The fit of an entry is ``amplitude / (1 + share * value)``. Each alternating step is one Gauss-Newton step for all
    rows or for all columns.
    """
    amplitude = (weight * sizes).sum() / weight.sum()
    inverse = torch.ones_like(sizes[:1])
    share = ((1 - sizes / amplitude) * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
    share = share.clamp_min(float(torch.finfo(torch.float32).eps))
    before = math.inf
    for iteration in range(MOST_ITERATIONS):
        inverse = _improved(inverse, amplitude, share, sizes, weight, 0)
        share = _improved(share, amplitude, inverse, sizes, weight, 1)
        fit = 1 / (1 + share * inverse)
        amplitude = (weight * fit * sizes).sum() / (weight * fit.square()).sum()
        misfit = float((weight * (sizes - amplitude * fit).square()).mean())
        if iteration >= ITERATIONS and not misfit < before - STALLED:
            break
        before = misfit
    return amplitude, share, inverse


def _improved(factor: Tensor, amplitude: Tensor, other: Tensor, sizes: Tensor, weight: Tensor, dim: int) -> Tensor:
    """Return one of the two factors of the product after a Gauss-Newton step, along one dimension of the entries."""
    fit = amplitude / (1 + factor * other)
    slope = -fit.square() / amplitude * other
    power = (weight * slope.square()).sum(dim, keepdim=True).clamp_min(1e-300)
    step = (weight * slope * (sizes - fit)).sum(dim, keepdim=True) / power
    return (factor + step).clamp(factor / STRIDE, factor * STRIDE)


@dataclass(frozen=True, eq=False)
class Line:
    """The inverse sizes of a layer's inputs up to a stretch, from several steps.

    Args:
        offsets: The number :math:`h_j` of each input, of which half are at most 1 in size. It is 0 for inputs that are
            0.
        signs: The sign of each input. It is 0 for inputs that are 0.
        spread: The estimated standard deviation of the error of each offset.
    """

    offsets: Tensor
    signs: Tensor
    spread: Tensor

    def values(self, stretch: float, bias: float, largest: float) -> Tensor:
        """Return the inputs of the layer.

        Args:
            stretch: The number :math:`t`.
            bias: The fitted inverse size of the bias, which is 1 without rounding errors.
            largest: The largest size of an input.
        """
        return self.signs / (bias + stretch * self.offsets).clamp_min(1 / largest)

    def relative_error(self, values: Tensor, stretch: float, uncertainty: float) -> float:
        """Return the estimated length of the error of the inputs as a share of their length.

        Args:
            values: The inputs of the layer.
            stretch: The number :math:`t`.
            uncertainty: The relative error of this number.
        """
        errors = stretch * (self.spread.square() + (uncertainty * self.offsets).square()).sqrt() * values.square()
        return float(errors.norm() / values.norm().clamp_min(1e-300))


def fit_line(rows: Rows) -> Line | None:
    """Return the inverse sizes of a layer's inputs up to a stretch, or ``None`` if there are too few entries.

    Args:
        rows: The update of the layer after several steps on one sample.
    """
    live, changed = rows.live()
    if min(live.updates.shape, default=0) < 3 or not bool(changed[-1]):
        return None
    sizes, signs = live.aligned()
    weight = torch.where(sizes > 0, live.noise.square().reciprocal(), 0.0)
    centred = sizes - (weight * sizes).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
    typical = weight.median(1, keepdim=True).values.sqrt()
    inverse = torch.linalg.svd(centred * typical, full_matrices=False).Vh[:1]
    for _ in range(ITERATIONS):
        total, first = weight.sum(1, keepdim=True), (weight * inverse).sum(1, keepdim=True)
        second = (weight * inverse.square()).sum(1, keepdim=True)
        level, along = (weight * sizes).sum(1, keepdim=True), (weight * sizes * inverse).sum(1, keepdim=True)
        determinant = (total * second - first.square()).clamp_min(1e-300)
        height, slope = (second * level - first * along) / determinant, (total * along - first * level) / determinant
        power = (weight * slope.square()).sum(0, keepdim=True).clamp_min(1e-300)
        inverse = (weight * slope * (sizes - height)).sum(0, keepdim=True) / power
        inverse = (inverse - inverse.mean()) / inverse.std().clamp_min(1e-300)
    offsets = inverse[0] - inverse[0, -1]
    size = offsets[:-1].abs().median().clamp_min(1e-300)
    errors = (weight * slope.square()).sum(0).clamp_min(1e-300).rsqrt()
    spread = (errors.square() + errors[-1].square()).sqrt()  # the bias is 0 by definition
    every = torch.zeros(3, rows.updates.shape[1], dtype=torch.double, device=changed.device)
    every[:, changed] = torch.stack([offsets / size, signs, spread / size])
    return Line(*every[:, :-1])
