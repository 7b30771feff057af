r"""Local spans, an attack that solves for the inputs of dense layers after several local steps.

The update of the first dense layer spans the samples, and that of the second spans their inputs of this layer
(:mod:`.local_layers`). The search is that of :mod:`.two_spans`, at several weights between the sent and the returned
ones:

1. Points of the first row space are searched for whose input of the second layer lies near the second row space.
2. Each point is improved at the weights between the two at which it lies nearest.
3. Points that mix others are left out. From the nearest point on, each next one must be new: it may not lie near the
   space of those that are kept. It must also lie far nearer to the second row space than mixtures of these.

Nothing of this needs labels, a learning rate, batches or a prior. Only weight decay must be known with its learning
rate. The smaller the steps, the better: the second row space holds exactly only at the weights of a single step. The
attack cannot prove its samples. We know of no earlier description of this attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.finders import starting_points
from leakgauge.attacks.analytic.levenberg import Problem, search
from leakgauge.attacks.analytic.local_layers import LocalLayers
from leakgauge.attacks.analytic.local_search import Findings, LocalSearch
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.observation import Observation
from leakgauge.core.seeding import generator

#: The number of weights between the sent and the returned ones at which points are searched for.
PLACES = 5
#: The rounds in which a point is improved at nearer and nearer weights, and the iterations of each.
ROUNDS, ITERATIONS = 3, 15
#: Two points are the same if they differ by less than this share of their length.
SAME = 0.1
#: A point is new if the length of its part outside the space of earlier ones is at least this share of its length.
NEW = 0.1
#: A sample's distance from the second row space is below this share of that of mixtures of samples.
TELLING = 0.6
#: The number of mixtures that are drawn for this comparison.
COMPARED = 200


@dataclass(frozen=True)
class LocalSpans(LocalSearch):
    """The attack that solves for samples in the row spaces of two dense layers' updates. See :func:`local_spans`."""

    def findings(self, observation: Observation, seed: int) -> Findings:
        """Return the empty findings on a message, or raise :class:`.DoesNotFit` if the attack does not apply.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
        """
        return _Points(LocalLayers.of(observation), self.starts, self.iterations, generator(seed, "local spans"))


class _Points:
    """The points that were found so far, as coordinates, each with its distance from the second row space."""

    def __init__(self, layers: LocalLayers, starts: int, iterations: int, random: torch.Generator) -> None:
        self.layers, self.starts, self.iterations, self.random = layers, starts, iterations, random
        self.last = layers.first.right[-1]
        self.points = layers.first.right.new_zeros(0, len(self.last))
        self.distances = self.last[:0]
        self.searches = 0

    def search_once(self) -> None:
        """Search at weights between the sent and the returned ones, and add the points that were found."""
        for place in range(PLACES):
            share = place / (PLACES - 1)
            starts = starting_points(self.layers.first, self.last, self.starts, self.random)
            ends, residuals = search(self._problem(share), starts, self.iterations)
            ends, residuals = _distinct(ends, residuals)
            self._add(*self._improved(ends, residuals, share))
        self.searches += 1

    def _problem(self, share: float) -> Problem:
        """Return the search problem at the weights that a share of the update leads to."""
        layers = self.layers
        return Problem(layers.layer_at(share), self.last, layers.second.right, layers.chain.activation)

    def _improved(self, points: Tensor, residuals: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return each point at the weights between the two at which it lies nearest, found by halving intervals."""
        shares = torch.full_like(residuals, share)
        width = 0.5 / (PLACES - 1)
        for _ in range(ROUNDS):
            tried = shares
            for step in (-width, width):
                for near in tried.unique():
                    group = tried == near
                    place = float((near + step).clamp(0, 1))
                    moved, distances = search(self._problem(place), points[group], ITERATIONS)
                    better = distances < residuals[group]
                    points[group] = torch.where(better[:, None], moved, points[group])
                    residuals[group] = torch.where(better, distances, residuals[group])
                    shares = shares.masked_scatter(group, torch.where(better, torch.full_like(distances, place), near))
            width /= 2
        return points, residuals

    def _add(self, points: Tensor, residuals: Tensor) -> None:
        """Add points, and keep the better one of each two that are the same."""
        joined = torch.cat([self.points, points]), torch.cat([self.distances, residuals.sqrt()])
        self.points, self.distances = _distinct(*joined)

    def kept(self) -> tuple[Tensor, Tensor]:
        """Return the inputs that are new and far nearer to the second row space than mixtures of them."""
        chosen: list[int] = []
        outside = self.points
        for number in range(len(self.points)):
            if len(chosen) == self.layers.samples:
                break
            rest = outside[number]
            if float(rest.norm()) < NEW * float(self.points[number].norm()):
                continue
            chosen.append(number)
            unit = rest / rest.norm()
            outside = outside - (outside @ unit)[:, None] * unit
        points, distances = self.points[chosen], self.distances[chosen]
        near = distances < TELLING * self._of_mixtures(points)
        return points[near] @ self.layers.first.right.T, distances[near]

    def _of_mixtures(self, points: Tensor) -> float:
        """Return the median distance from the second row space of sums and differences of points."""
        if len(points) < 3:
            return math.inf
        picked = torch.randint(len(points), (COMPARED, 3), generator=self.random).to(points.device)
        picked = picked[(picked.diff(dim=1) != 0).all(1) & (picked[:, 0] != picked[:, 2])]
        one, other, taken = points[picked].unbind(1)
        return float(self._problem(0.5).residuals(one + other - taken).sqrt().median())


def _distinct(points: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points in the order of their residuals, without those that repeat a better one."""
    order = residuals.argsort()
    points, residuals = points[order], residuals[order]
    size = points.norm(dim=1).median() if len(points) else 1.0
    repeated = torch.tril(torch.cdist(points, points) < SAME * size, -1).any(1)
    return points[~repeated].clone(), residuals[~repeated].clone()


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs several local steps of SGD and two consecutive dense layers.

    Args:
        observation: The message of the client.
    """
    if observation.data.one_hot_groups:
        return Fit(False, "made for inputs without categories, and local_rows uses that one-hot columns are 0 or 1")
    try:
        layers = LocalLayers.of(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, f"the updates of two dense layers span the {layers.samples} samples")


def local_spans(*, starts: int = 96, iterations: int = 60, attempts: int = 3) -> LocalSpans:
    """Solve for the samples that enter two dense layers, after several local steps of SGD.

    The samples must enter the first of two consecutive dense layers with biases, with an elementwise activation between
    the layers. The learning rate, the batches and the labels may be unknown.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
    """
    return LocalSpans(starts, iterations, attempts)


SPECS = (
    AttackSpec(
        name="local_spans",
        factory=local_spans,
        summary="Local spans (ours): the samples that enter two dense layers, after several local steps.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=32,
        audit={},
        exact=True,
    ),
)
