r"""The proof that a possible input of the first layer is a sample of the client with a certain label.

For a point :math:`x` and a label :math:`y`, the known network gives the gradient :math:`\delta_k(x, y)` of the loss
with respect to the outputs of each layer :math:`k`. Let :math:`G_k` be the observed gradient of the layer,
:math:`G_k^+` its pseudo-inverse and :math:`N` the number of samples. A true sample with its true label fulfils
:math:`\delta_k^T (G_k^+)^T [\text{input}_k, 1] = N` in both layers. The gradient :math:`\delta_k` also lies in the
column space of :math:`G_k`. For other points and labels, at least one of these conditions fails.

The gradient of a layer may have a lower rank than there are samples, for example in an output layer with few classes,
or in a first layer whose inputs are linearly dependent. The equation then does not hold in this layer and is not used
there. If the gradients of both layers show fewer samples than there are, the equation may hold in one layer only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.analytic.layer_span import LayerSpan
from leakgauge.attacks.analytic.two_layers import TwoLayers

#: The distance of a sample from the column space is below this share of the distances of wrong points.
TELLING = 0.1
#: The factor by which the proof of copies must be better. The mean of several samples with the same active neurons and
#: nearly the same gradients fulfils the equations of copies nearly.
COPIED = 1000.0
#: The factor by which the proof by one layer must be better if some samples are hidden. The others may be mixtures.
ALONE = 100.0
#: The least difference of a layer's outputs and its gradient's rank with which this layer can prove samples alone.
MARGIN = 8
#: The sizes of a layer's outputs among which the scale of an input is searched for, if the layer has no bias.
SCALES = torch.logspace(-2, 2, 66, dtype=torch.double)
#: The number of times that this search is narrowed by a factor of four.
ZOOMS = 12
#: The number of points that are scaled at the same time.
SCALED_AT_ONCE = 8


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
        return self._labelled(points, spans)

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
            return self._proven_by_one_layer(inputs, gradients, spans, targets)
        numbers = [spans[layer].coefficients(gradients[layer], inputs[layer]) for layer in separating]
        copies = (self.samples / numbers[0]).nan_to_num(1.0).round().clamp(1, self.most_copies)
        errors = [(number * copies / self.samples - 1).abs() for number in numbers]
        errors += [self.weights[layer] * spans[layer].outside(gradients[layer]) for layer in sorted({*separating, 1})]
        error = torch.stack(errors).amax(0).nan_to_num(torch.inf)
        error = torch.where(copies > 1, COPIED * error, error)
        return Candidates(inputs, gradients, targets, copies, error)

    def _proven_by_one_layer(
        self,
        inputs: tuple[Tensor, Tensor],
        gradients: tuple[Tensor, Tensor],
        spans: tuple[LayerSpan, LayerSpan],
        targets: Tensor,
    ) -> Candidates:
        """Return the candidates with the errors of the layer that explains each of them best.

        A layer can prove samples alone if the column space of its gradient has much fewer dimensions than the layer
        has outputs.
        """
        best: Candidates | None = None
        for layer in self._separating(spans):
            span, gradient = spans[layer], gradients[layer]
            if span.right.shape[1] + MARGIN > gradient.shape[1]:
                continue
            numbers = span.coefficients(gradient, inputs[layer])
            copies = (self.samples / numbers).nan_to_num(1.0).round().clamp(1, self.most_copies)
            missed = (numbers * copies / self.samples - 1).abs()
            error = torch.maximum(missed, max(1.0, self.weights[layer]) * span.outside(gradient)).nan_to_num(torch.inf)
            error = torch.where(copies > 1, COPIED, ALONE) * error
            proven = Candidates(inputs, gradients, targets, copies, error)
            best = proven if best is None else _better(best, proven)
        if best is not None:
            return best
        nothing = torch.full_like(gradients[0][:, 0], torch.inf)
        return Candidates(inputs, gradients, targets, torch.ones_like(nothing), nothing)

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
