r"""The proof that a point of the first span is a sample of the client with a certain label.

For a point :math:`x` and a label :math:`y`, the known network gives the gradient :math:`\delta_k(x, y)` of the loss
with respect to the outputs of each layer :math:`k`. A true sample with its true label fulfils
:math:`\delta_k^T (G_k^+)^T [\text{input}_k, 1] = N` in both layers, and :math:`\delta_k` lies in the column space of
the layer's gradient :math:`G_k`. For other points and labels, at least one of these conditions fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import TwoLayers
from leakgauge.attacks.analytic.layer_span import LayerSpan


@dataclass(frozen=True, eq=False)
class Candidates:
    """Points that may be samples, each with a label and with the gradients of its loss.

    Args:
        inputs: The augmented inputs of both layers, one row for each point.
        gradients: The gradient of each point's loss with respect to the outputs of both layers.
        targets: The label of each point.
        copies: The number of copies of each point that the client has.
        error: The largest relative error in the equations of the proof, times the number of copies.
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
    """A callable that tries to prove that points are samples of one client.

    Args:
        chain: The two dense layers.
        classes: The number of classes, or ``None`` for a regression.
        samples: The number of samples in the batch.
        most_copies: The largest possible number of copies of one sample.
    """

    chain: TwoLayers
    classes: int | None
    samples: int
    most_copies: int

    def __call__(self, points: Tensor, spans: tuple[LayerSpan, LayerSpan]) -> Candidates:
        """Return each point with the label for which the error of the proof is smallest, and with this error.

        Args:
            points: The augmented inputs of the first layer.
            spans: The gradients of both layers, with diagonal cores.
        """
        first = points @ self.chain.augmented_weight().T
        hidden = self.chain.activation(first)[0]
        inputs = (points, torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1))
        if self.classes is None:
            return self._with_targets(first, inputs, spans, self._regression_targets(first, inputs, spans))
        best: Candidates | None = None
        for label in range(self.classes):
            targets = torch.full((len(points),), label, device=points.device)
            labelled = self._with_targets(first, inputs, spans, targets)
            best = labelled if best is None else _better(best, labelled)
        assert best is not None
        return best

    def _with_targets(
        self, first: Tensor, inputs: tuple[Tensor, Tensor], spans: tuple[LayerSpan, LayerSpan], targets: Tensor
    ) -> Candidates:
        of_first, of_second = self.chain.gradients(first, targets, self.chain.second)
        gradients = (of_first, of_second)
        numbers = [span.coefficients(*pair) for span, *pair in zip(spans, gradients, inputs, strict=True)]
        copies = (self.samples / numbers[0]).nan_to_num(1.0).round().clamp(1, self.most_copies)
        errors = [(number * copies / self.samples - 1).abs() for number in numbers]
        errors += [span.outside(gradient) for span, gradient in zip(spans, gradients, strict=True)]
        # Copies are rare, so they need a better proof.
        error = torch.stack(errors).amax(0).nan_to_num(torch.inf) * copies
        return Candidates(inputs, gradients, targets, copies, error)

    def _regression_targets(
        self, first: Tensor, inputs: tuple[Tensor, Tensor], spans: tuple[LayerSpan, LayerSpan]
    ) -> Tensor:
        r"""Return the target for which the proof holds in the second layer.

        The loss is :math:`(f(x) - y)^2`, so both :math:`\delta_k` are proportional to :math:`f(x) - y`. The left-hand
        side of the equation of the proof is computed for one other target. From the result, the function computes the
        target for which the equation holds.
        """
        with torch.no_grad():
            outputs = self.chain.outputs(first).reshape(-1)
        one_below = self.chain.gradients(first, outputs - 1, self.chain.second)[1]
        return outputs - self.samples / spans[1].coefficients(one_below, inputs[1])


def _better(one: Candidates, other: Candidates) -> Candidates:
    """Return, for each point, the candidate with the smaller error."""
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
