"""Three searches for vectors that may be samples of the client. All of them need two consecutive dense layers.

The samples are the inputs of the first dense layer. If this layer has a bias, a 1 is appended to each input
:math:`x`, and the result :math:`[x, 1]` is called the augmented input. The augmented inputs of all samples lie in the
row space of the layer's gradient. A point is a vector of coordinates in this space. The gradients of the samples'
losses with respect to the layer's outputs lie in the column space of the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from leakgauge.attacks.analytic.layer_span import LayerSpan
from leakgauge.attacks.analytic.levenberg import Problem, search
from leakgauge.attacks.analytic.mixture import Branches, Fitted, Mixture
from leakgauge.attacks.analytic.one_hot import OneHotProblem
from leakgauge.attacks.analytic.smooth_search import CurveProblem
from leakgauge.attacks.analytic.two_layers import TwoLayers

#: The largest squared relative residual of a point that is worth a proof.
PROMISING = 0.05**2
#: Points nearer to each other than this share of their norm are the same sample.
SAME = 1e-2
#: The largest squared relative residual of a gradient that is used to separate the samples.
SEPARATED = 1e-4
#: Two gradients are the same if the cosine of their angle is nearer to 1 than this.
SAME_DIRECTION = 1e-4
#: The factor by which proofs must be better if the gradients of some samples are unknown.
INCOMPLETE = 10.0
#: The number of searches without progress before inputs are computed from the gradients of some samples only.
PATIENCE = 3
#: The random moves of a starting point's outputs, in standard deviations, by which its slopes are blurred.
BLUR = torch.linspace(-1.0, 1.0, 9)


class Found(NamedTuple):
    """The result of one search.

    Args:
        points: The inputs that may be samples, as coordinates in the row space of the first layer's gradient.
        residuals: The squared relative residual of each point.
        progress: Whether the search has found a gradient of a sample, which helps later searches.
        strictness: The number by which the tolerance of the proofs is divided, because these points are only
            approximate.
        gradients: For each point, the gradient at the outputs of the first layer from which the point was computed, as
            coordinates in the column space. ``None`` if the points were computed in another way.
    """

    points: Tensor
    residuals: Tensor
    progress: bool = False
    strictness: float = 1.0
    gradients: Tensor | None = None


#: A search in the gradients of both layers, of the samples that are not found yet.
Finder = Callable[[LayerSpan, LayerSpan], Found]


class SecondSpanFinder:
    """The search for inputs of the first layer, for any activation.

    For the input of a true sample, the resulting input of the second layer lies in the row space of the second layer's
    observed gradient.

    Args:
        chain: The two dense layers.
        starts: The number of starting points of each search.
        iterations: The largest number of iterations of each search.
        random: The generator of the starting points.
    """

    def __init__(self, chain: TwoLayers, starts: int, iterations: int, random: torch.Generator) -> None:
        self.chain, self.starts, self.iterations, self.random = chain, starts, iterations, random

    def __call__(self, first: LayerSpan, second: LayerSpan) -> Found:
        """Search from new random starting points, and return the inputs that may be samples.

        Args:
            first: The gradient of the first layer, from which proven samples have been subtracted.
            second: The gradient of the second layer, from which proven samples have been subtracted.
        """
        if len(second.core) < len(first.core):
            return Found(first.core[:0], first.core[:0, 0])
        problem = self._problem(first, second)
        points = starting_points(first, first.right[-1], self.starts, self.random)
        return _distinct(*search(problem, points, self.iterations))

    def _problem(self, first: LayerSpan, second: LayerSpan) -> Problem:
        layer = self.chain.augmented_weight() @ first.right
        return Problem(layer, first.right[-1], second.right, self.chain.activation)


class OneHotFinder(SecondSpanFinder):
    """The search for rows of a table, with equations for its one-hot columns.

    Args:
        chain: The two dense layers.
        columns: The matrix that maps augmented inputs of the first layer to the values of the one-hot columns.
        starts: The number of starting points of each search.
        iterations: The largest number of iterations of each search.
        random: The generator of the starting points.
    """

    def __init__(
        self, chain: TwoLayers, columns: Tensor, starts: int, iterations: int, random: torch.Generator
    ) -> None:
        super().__init__(chain, starts, iterations, random)
        self.columns = columns

    def _problem(self, first: LayerSpan, second: LayerSpan) -> Problem:
        layer = self.chain.augmented_weight() @ first.right
        return OneHotProblem(layer, first.right[-1], second.right, self.chain.activation, self.columns @ first.right)


class CurveFinder(SecondSpanFinder):
    """The search for inputs of the first layer, for smooth activations.

    For the input of a true sample, the gradient at the outputs of each of the two layers lies in the column space of
    this layer's observed gradient.
    """

    def __call__(self, first: LayerSpan, second: LayerSpan) -> Found:
        """Search from new random starting points, and return the inputs that may be samples.

        Args:
            first: The gradient of the first layer, from which proven samples have been subtracted.
            second: The gradient of the second layer, from which proven samples have been subtracted.
        """
        problem = CurveProblem(
            self.chain.augmented_weight() @ first.right,
            self.chain.last_entry(first.right),
            first.left,
            self.chain.layer(self.chain.second).weight.T @ second.left,
            self.chain.curvature,
        )
        points = starting_points(first, problem.last, self.starts, self.random)
        ends, residuals = search(problem, problem.starts(points), self.iterations)
        return _distinct(ends[:, : len(first.core)], residuals)


class KinkFinder(SecondSpanFinder):
    r"""The search for the gradient of each sample at the outputs of the first layer, if the activation has two slopes.

    The gradient of the first layer's weights is :math:`L S R^T` with orthonormal bases :math:`L` and :math:`R` and a
    diagonal :math:`S`. Sample :math:`i` has the gradient :math:`L a_i` at the layer's outputs, and its input is
    :math:`R c_i`, with unknown coordinates :math:`a_i` and :math:`c_i`. The coordinates of different samples fulfil
    :math:`a_j^T S^{-1} c_i = 0`. If all :math:`a_j` are known, these equations therefore determine all inputs. If only
    some :math:`a_j` are known, the equations give approximate inputs, which may be good enough for a proof. Each search
    starts from inputs that fulfil the equations of all known :math:`a_j`.

    Args:
        chain: The two dense layers.
        branches: The two slopes of the activation.
        starts: The number of starting points of each search.
        iterations: The largest number of iterations of each search.
        random: The generator of the starting points.
    """

    def __init__(
        self, chain: TwoLayers, branches: Branches, starts: int, iterations: int, random: torch.Generator
    ) -> None:
        super().__init__(chain, 2 * starts, iterations, random)
        self.branches = branches
        self.known = torch.zeros(0, len(branches.low)).to(branches.low)
        self.misses = self.known[:, 0]
        self.stuck = 0
        self.record = (-len(branches.low), 0)

    def __call__(self, first: LayerSpan, second: LayerSpan) -> Found:
        """Search for gradients of further samples, and return the inputs computed from all gradients found so far.

        Gradients from earlier calls are kept. If the gradients of some samples are still missing, no inputs are
        returned, or approximate inputs after several calls without progress.

        Args:
            first: The gradient of the first layer, from which proven samples have been subtracted.
            second: The gradient of the second layer, from which proven samples have been subtracted.
        """
        before = self._known_in(first)
        fitted = self._fit(first, second, before)
        order = fitted.residuals.argsort()
        for row in order[fitted.residuals[order] < SEPARATED].tolist():
            if len(before) == len(first.core):
                break
            direction = fitted.gradients[row]
            if not len(before) or float((before @ direction).abs().max()) < 1 - SAME_DIRECTION:
                before = torch.cat([before, direction[None]])
                self.misses = torch.cat([self.misses, fitted.residuals[row, None]])
        progress = (-len(first.core), len(before)) > self.record
        self.record = max(self.record, (-len(first.core), len(before)))
        self.known = before @ first.left.T
        self.stuck = 0 if progress else self.stuck + 1
        if len(before) < len(first.core):
            inexact = self._inputs(first, before if self.stuck >= PATIENCE else before[:0])
            return inexact._replace(progress=progress, strictness=INCOMPLETE)
        found = self._inputs(first, before)
        self.known, self.misses = self.known[:0], self.misses[:0]
        return found

    def _known_in(self, first: LayerSpan) -> Tensor:
        """Return the samples' gradients found so far, as coordinates in the column space of the first layer's gradient.

        The gradients of proven samples are left out. Proven samples have been subtracted from the layer's gradient, so
        their gradients no longer lie in its column space.
        """
        inside = self.known @ first.left
        stays = inside.norm(dim=1) > 1 - SAME_DIRECTION
        self.known, self.misses = self.known[stays], self.misses[stays]
        units: Tensor = inside[stays] / inside[stays].norm(dim=1, keepdim=True)
        return units

    def _fit(self, first: LayerSpan, second: LayerSpan, known: Tensor) -> Fitted:
        last = self.chain.last_entry(first.right)
        points = starting_points(first, last, self.starts, self.random, known, only_neurons=True)
        outputs = points @ (self.chain.augmented_weight() @ first.right).T
        weight = self.chain.layer(self.chain.second).weight
        mixture = Mixture(first.left, weight.T @ second.left, self.branches)
        scale = outputs.std(1, keepdim=True)
        moved = [self.chain.activation(outputs + float(move) * scale)[1] for move in BLUR]
        shares = self.branches.share(torch.stack(moved).mean(0)).clamp(0.02, 0.98)
        pull = points / first.core.diagonal()
        gradients = self.chain.guessed_gradients(outputs, self.random) @ second.left
        pulls = [value / value.norm(dim=1, keepdim=True).clamp_min(1e-300) for value in (pull, gradients)]
        even = (torch.arange(len(points), device=points.device) % 2 == 0)[:, None]
        return mixture.fit(shares, (pulls[0] * even, pulls[1] * ~even), self.iterations)

    def _inputs(self, first: LayerSpan, gradients: Tensor) -> Found:
        """Compute the inputs of some samples from the gradients of these samples at the outputs of the first layer.

        The inputs are exact if the gradients of all samples that are not yet proven are given. They are also exact if
        the given gradients are orthogonal to the missing gradients. The inputs are nearly exact if the
        missing gradients are much smaller than the given gradients.
        """
        if not len(gradients):
            return Found(first.core[:0], first.core[:0, 0])
        points = inputs_from(first, gradients, self.chain.last_entry(first.right))
        return Found(points, self.misses, gradients=gradients)


def inputs_from(first: LayerSpan, gradients: Tensor, last: Tensor | None) -> Tensor:
    """Compute the inputs of all samples from their gradients at the outputs of the first layer.

    The inputs are returned as coordinates in the row space of the layer's gradient.

    Args:
        first: The gradient of the first layer. Its matrix ``core`` must be diagonal.
        gradients: The gradient of each sample, as coordinates in the column space of the layer's gradient. Each row
            may be multiplied by any factor.
        last: The coefficients that compute the last entry of an input from its coordinates. This entry must be 1.
            ``None`` if the layer has no bias.
    """
    points: Tensor = (first.core.diagonal()[:, None] * torch.linalg.pinv(gradients)).T
    points = points if last is None else points / (points @ last)[:, None]
    return points.nan_to_num(0.0, 0.0, 0.0)


def starting_points(
    first: LayerSpan,
    last: Tensor | None,
    count: int,
    random: torch.Generator,
    known: Tensor | None = None,
    only_neurons: bool = False,
) -> Tensor:
    """Return starting points for a search. One half comes from single neurons, and the other half is random.

    The gradient of a neuron's weights divided by the gradient of its bias is a weighted sum of samples, with weights
    that add up to 1. The sums with a small norm are nearest to single samples, so a search starts from these sums. All
    points are coordinates in the row space of the first layer's gradient.

    Args:
        first: The gradient of the first layer.
        last: The coefficients that compute the last entry of an input from its coordinates. This entry must be 1.
            ``None`` if the layer has no bias.
        count: The number of starting points.
        random: The generator of the starting points.
        known: Gradients of samples, as coordinates in the column space of the layer's gradient. These samples are
            removed from the weighted sums.
        only_neurons: Whether all starting points are from single neurons.
    """
    neurons = first.left
    if known is not None and len(known):
        basis = torch.linalg.qr(known.T)[0]
        neurons = neurons - (neurons @ basis) @ basis.T
    ratios = neurons @ first.core
    if last is not None:
        ratios = ratios / (ratios @ last)[:, None]
    norms = ratios.norm(dim=1).nan_to_num(torch.inf, torch.inf)
    order = norms.argsort()[: max(1, len(norms) // 2)]
    near = order[torch.randperm(len(order), generator=random).to(order.device)]
    near = near[: count if only_neurons else count // 2]
    size = norms[order[len(order) // 2]] / len(first.core) ** 0.5
    drawn = torch.randn(count - len(near), len(first.core), dtype=torch.double, generator=random)
    starts = torch.cat([ratios[near], drawn.to(ratios) * size])
    return starts[starts.isfinite().all(1)]


def _distinct(points: Tensor, residuals: Tensor) -> Found:
    """Return the points with small residuals, sorted by residual. Points that are nearly equal are returned once."""
    order = residuals.argsort()
    order = order[residuals[order] < PROMISING]
    points, residuals = points[order], residuals[order]
    near = torch.cdist(points, points) < SAME * points.norm(dim=1)
    repeated = torch.tril(near, -1).any(1)
    return Found(points[~repeated], residuals[~repeated])
