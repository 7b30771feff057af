r"""The proof that a possible input of the first layer is a sample of the client with a certain label.

For a point :math:`x` and a label :math:`y`, the known network gives the gradient :math:`\delta_k(x, y)` of the loss
with respect to the outputs of each layer :math:`k`. Let :math:`G_k` be the observed gradient of the layer,
:math:`G_k^+` its pseudo-inverse and :math:`N` the number of samples. A true sample with its true label fulfils
:math:`\delta_k^T (G_k^+)^T [\text{input}_k, 1] = N` in both layers. The gradient :math:`\delta_k` also lies in the
column space of :math:`G_k`. For other points and labels, at least one of these conditions fails.

The gradient of a layer may have a lower rank than there are samples, for example in an output layer with few classes,
or in a first layer whose inputs are linearly dependent. The equation then does not hold in this layer and is not used
there. If the gradients of both layers show fewer samples than there are, the equation may hold in one layer only.

A point is a little inexact, so a neuron near a kink, such as that of ReLU at zero, may be active for the point and not
for the sample. The gradients :math:`\delta_k` of the sample are then those of a slightly shifted point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.analytic.layer_span import LayerSpan
from leakgauge.attacks.analytic.two_layers import TwoLayers
from leakgauge.core.seeding import generator

#: The distance of a sample from the column space is below this share of the distances of wrong points.
TELLING = 0.1
#: The factor by which the proof of copies must be better. The mean of several samples with the same active neurons and
#: nearly the same gradients fulfils the equations of copies nearly.
COPIED = 1000.0
#: The factor by which the proof by one layer must be better if some samples are hidden. The others may be mixtures.
ALONE = 100.0
#: The factor by which the proof by both layers must be better if some samples are hidden.
TOGETHER = 3.0
#: The least difference of a layer's outputs and its gradient's rank with which this layer can prove samples alone.
MARGIN = 8
#: The sizes of a layer's outputs among which the scale of an input is searched for, if the layer has no bias.
SCALES = torch.logspace(-2, 2, 66, dtype=torch.double)
#: The number of times that this search is narrowed by a factor of four.
ZOOMS = 12
#: The number of points that are scaled at the same time.
SCALED_AT_ONCE = 8
#: The errors of proofs that may come from single neurons near kinks.
AT_KINK = (1e-3, 0.3)
#: The sizes of the random shifts of the first layer's outputs, in their standard deviations. Each is tried with both
#: signs. Such neurons then change their slope.
SHIFTS = (1e-5, 1e-4, 1e-4, 1e-3, 1e-3)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Inputs that may be samples, each with a label and with the gradients of the loss for this label.

    Args:
        inputs: The inputs of both layers, with an appended 1 if the layer has a bias, one row for each candidate.
        gradients: The gradient of each candidate's loss with respect to the outputs of both layers.
        targets: The label of each candidate.
        copies: The number of copies of each candidate in the client's data.
        error: The relative error with which each candidate explains the observed gradients. It is multiplied by
            :data:`COPIED` if there are copies.
    """

    inputs: tuple[Tensor, Tensor]
    gradients: tuple[Tensor, Tensor]
    targets: Tensor
    copies: Tensor
    error: Tensor

    def rows(self, rows: Tensor) -> Candidates:
        """Return the candidates with the given indices."""
        first, second = self.inputs
        of_first, of_second = self.gradients
        return Candidates(
            (first[rows], second[rows]),
            (of_first[rows], of_second[rows]),
            self.targets[rows],
            self.copies[rows],
            self.error[rows],
        )

    def replaced(self, rows: Tensor, others: Candidates) -> Candidates:
        """Return the candidates with others in the places with the given indices."""

        def put(own: Tensor, other: Tensor) -> Tensor:
            return own.index_copy(0, rows, other)

        return Candidates(
            (put(self.inputs[0], others.inputs[0]), put(self.inputs[1], others.inputs[1])),
            (put(self.gradients[0], others.gradients[0]), put(self.gradients[1], others.gradients[1])),
            put(self.targets, others.targets),
            put(self.copies, others.copies),
            put(self.error, others.error),
        )


@dataclass(frozen=True, eq=False)
class Prover:
    """A callable that tries to prove that possible inputs of the first layer (points) are samples of one client.

    Args:
        chain: The two dense layers.
        classes: The number of classes, or ``None`` for a regression.
        samples: The number of samples in the batch.
        most_copies: The largest possible number of copies of one sample.
        distinct: The number of distinct samples in the gradients that the prover gets.
        hidden: Whether the gradients show fewer samples than there are.
        weights: For each layer, a factor in the error of a candidate. The factor multiplies the distance of the
            candidate's gradient from the column space of the layer's observed gradient.
    """

    chain: TwoLayers
    classes: int | None
    samples: int
    most_copies: int
    distinct: int
    hidden: bool = False
    weights: tuple[float, float] = (1.0, 1.0)

    def weighted(self, wrong: Tensor, spans: tuple[LayerSpan, LayerSpan], tolerance: float) -> Prover:
        """Return a stricter prover, which rejects points that are known to be wrong.

        For a true sample, the gradient at the outputs of each layer lies in the column space of this layer's observed
        gradient. If an activation is nearly linear, the gradients of wrong points also lie near this space. The
        distance of a true sample from this space must then be much smaller than that of wrong points.

        Args:
            wrong: Inputs of the first layer that are not samples, with an appended 1 if the layer has a bias.
            spans: The gradients of both layers. Their matrices ``core`` must be diagonal.
            tolerance: The largest error with which a point still counts as proven.
        """
        labelled = self._labelled(wrong, spans)
        # The first layer decides. In the second layer, all points are near the column space if it is an output layer.
        decides = next(iter(self._separating(spans)), 0)
        typical = float(spans[decides].outside(labelled.gradients[decides]).nan_to_num(0.0).median())
        weight = max(1.0, tolerance / max(TELLING * typical, 1e-300))
        return replace(self, weights=(weight, 1.0) if decides == 0 else (0.0, weight))

    def __call__(self, points: Tensor, spans: tuple[LayerSpan, LayerSpan]) -> Candidates:
        """Return each point with the label that explains the observed gradients best, and with the error that is left.

        Args:
            points: Inputs of the first layer that may be samples, with an appended 1 if the layer has a bias.
            spans: The gradients of both layers. Their matrices ``core`` must be diagonal.
        """
        if not self.chain.has_bias(self.chain.first):
            points = torch.cat([self._scaled(part, spans) for part in points.split(SCALED_AT_ONCE)])
        return self._off_kinks(self._labelled(points, spans), spans)

    def _off_kinks(self, found: Candidates, spans: tuple[LayerSpan, LayerSpan]) -> Candidates:
        """Return the candidates with the slopes of neurons near kinks that explain the observed gradients best."""
        rows = torch.nonzero((found.error > AT_KINK[0]) & (found.error < AT_KINK[1])).flatten()
        if not len(rows):
            return found
        best = found.rows(rows)
        first = best.inputs[0] @ self.chain.augmented_weight().T
        random = generator(0, "shifts off kinks")
        for shift in SHIFTS:
            drawn = torch.randn(first.shape, dtype=first.dtype, generator=random).to(first)
            move = shift * first.std(1, keepdim=True) * drawn
            for moved in (first + move, first - move):
                best = _better(best, self._with_targets(moved, best.inputs, spans, best.targets))
        return found.replaced(rows, best)

    def _labelled(self, points: Tensor, spans: tuple[LayerSpan, LayerSpan]) -> Candidates:
        """Return each point with the label that explains the observed gradients best, and with the error that is left.

        A point is an input of the first layer that may be a sample.
        """
        first = points @ self.chain.augmented_weight().T
        hidden = self.chain.activation(first)[0]
        inputs = (points, self.chain.with_ones(hidden, self.chain.second))
        if self.classes is None:
            return self._with_targets(first, inputs, spans, self._regression_targets(first, inputs, spans))
        best: Candidates | None = None
        for label in range(self.classes):
            targets = torch.full((len(points),), label, device=points.device)
            labelled = self._with_targets(first, inputs, spans, targets)
            best = labelled if best is None else _better(best, labelled)
        assert best is not None
        return best

    def _scaled(self, points: Tensor, spans: tuple[LayerSpan, LayerSpan]) -> Tensor:
        """Multiply each point (possible input) by the factor with which it explains the observed gradients best.

        The gradient of a layer without bias determines inputs only up to a factor. The network's outputs depend on this
        factor, so the factor can be found.
        """
        size = (points @ self.chain.augmented_weight().T).square().mean(1).sqrt().clamp_min(1e-300)
        units = points / size[:, None]
        factors = SCALES.log().to(points)
        tried = torch.cat([factors, factors])[None].expand(len(points), -1)
        signs = torch.cat([torch.ones_like(factors), -torch.ones_like(factors)])[None].expand(len(points), -1)
        width = float(factors[1] - factors[0])
        rows = torch.arange(len(points), device=points.device)
        for _ in range(ZOOMS):
            multiples = signs * tried.exp()
            every = (multiples[:, :, None] * units[:, None, :]).flatten(0, 1)
            best = self._labelled(every, spans).error.reshape(tried.shape).argmin(1)
            centre, sign = tried[rows, best], signs[rows, best]
            tried = centre[:, None] + width * torch.linspace(-1, 1, 9).to(points)
            signs = sign[:, None].expand_as(tried)
            width /= 4
        return (sign * centre.exp())[:, None] * units

    def _with_targets(
        self, first: Tensor, inputs: tuple[Tensor, Tensor], spans: tuple[LayerSpan, LayerSpan], targets: Tensor
    ) -> Candidates:
        of_first, of_second = self.chain.gradients(first, targets, self.chain.second)
        gradients = (of_first, of_second)
        separating = self._separating(spans)
        if self.hidden:
            return self._proven_in_part(inputs, gradients, spans, targets)
        numbers = [spans[layer].coefficients(gradients[layer], inputs[layer]) for layer in separating]
        copies = (self.samples / numbers[0]).nan_to_num(1.0).round().clamp(1, self.most_copies)
        errors = [(number * copies / self.samples - 1).abs() for number in numbers]
        errors += [self.weights[layer] * spans[layer].outside(gradients[layer]) for layer in sorted({*separating, 1})]
        error = torch.stack(errors).amax(0).nan_to_num(torch.inf)
        error = torch.where(copies > 1, COPIED * error, error)
        return Candidates(inputs, gradients, targets, copies, error)

    def _proven_in_part(
        self,
        inputs: tuple[Tensor, Tensor],
        gradients: tuple[Tensor, Tensor],
        spans: tuple[LayerSpan, LayerSpan],
        targets: Tensor,
    ) -> Candidates:
        """Return the candidates with the errors of the layer that explains each of them best, or of both layers.

        A layer can prove samples alone if the column space of its gradient has much fewer dimensions than the layer
        has outputs.
        """
        best: Candidates | None = None
        both = torch.zeros_like(gradients[0][:, 0])
        counts: list[Tensor] = []
        for layer in self._separating(spans):
            span, gradient = spans[layer], gradients[layer]
            if span.right.shape[1] + MARGIN > gradient.shape[1]:
                continue
            numbers = span.coefficients(gradient, inputs[layer])
            copies = (self.samples / numbers).nan_to_num(1.0).round().clamp(1, self.most_copies)
            missed = (numbers * copies / self.samples - 1).abs()
            error = torch.maximum(missed, max(1.0, self.weights[layer]) * span.outside(gradient)).nan_to_num(torch.inf)
            counts.append(copies)
            both = torch.maximum(both, error)
            error = torch.where(copies > 1, COPIED, ALONE) * error
            proven = Candidates(inputs, gradients, targets, copies, error)
            best = proven if best is None else _better(best, proven)
        if best is None:
            nothing = torch.full_like(gradients[0][:, 0], torch.inf)
            return Candidates(inputs, gradients, targets, torch.ones_like(nothing), nothing)
        if len(counts) == 2:
            error = torch.where(counts[0] > 1, COPIED, TOGETHER) * both
            error = torch.where(counts[0] == counts[1], error, torch.inf)
            best = _better(best, Candidates(inputs, gradients, targets, counts[0], error))
        return best

    def _regression_targets(
        self, first: Tensor, inputs: tuple[Tensor, Tensor], spans: tuple[LayerSpan, LayerSpan]
    ) -> Tensor:
        r"""Return, for each possible input :math:`x`, the regression target that it must have if it is a sample.

        A sample fulfils :math:`\delta^T (G^+)^T [x, 1] = N`, where :math:`G^+` is the pseudo-inverse of the observed
        gradient, :math:`\delta` the gradient at the outputs and :math:`N` the number of samples. The loss is
        :math:`(f(x) - y)^2`, so :math:`\delta` is proportional to :math:`f(x) - y`. The left-hand side is computed for
        the trial target :math:`y = f(x) - 1`. The true target follows from the result.
        """
        with torch.no_grad():
            outputs = self.chain.outputs(first).reshape(-1)
        index = max(self._separating(spans), default=0)
        one_below = self.chain.gradients(first, outputs - 1, self.chain.second)[index]
        return outputs - self.samples / spans[index].coefficients(one_below, inputs[index])

    def _separating(self, spans: tuple[LayerSpan, LayerSpan]) -> list[int]:
        """Return the indices of the layers whose gradients have as high a rank as there are distinct samples.

        The equations of these layers can be used to prove samples.
        """
        return [layer for layer, span in enumerate(spans) if len(span.core) >= self.distinct]


def _better(one: Candidates, other: Candidates) -> Candidates:
    """Compare two candidates for each point, which differ in their labels, and return those with the smaller error."""
    switch = other.error < one.error

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(switch.reshape(-1, *(1,) * (a.ndim - 1)), b, a)

    return Candidates(
        one.inputs,
        (choose(one.gradients[0], other.gradients[0]), choose(one.gradients[1], other.gradients[1])),
        choose(one.targets, other.targets),
        choose(one.copies, other.copies),
        choose(one.error, other.error),
    )


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Return the candidates of several searches as one.

    Args:
        parts: The candidates of each search.
    """

    def stacked(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.cat([first for first, _ in pairs]), torch.cat([second for _, second in pairs])

    return Candidates(
        stacked([part.inputs for part in parts]),
        stacked([part.gradients for part in parts]),
        torch.cat([part.targets for part in parts]),
        torch.cat([part.copies for part in parts]),
        torch.cat([part.error for part in parts]),
    )
