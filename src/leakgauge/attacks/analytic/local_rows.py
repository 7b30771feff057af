r"""Local rows, an attack that solves for the rows of a table with one-hot columns after several local steps.

A client trains for several steps of SGD. The update of the first dense layer is then a sum of terms
:math:`\delta_i [x_i, 1]^T`, so every row :math:`[x_i, 1]` still lies in its row space exactly, as after one step. The
same holds for the next dense layer, whose inputs :math:`\phi(W x_i + b)` change a little with the weights. The server
knows the weights before and after the training and takes several points of the straight line between them.

1. A point of the first row space is searched for whose one-hot columns are 0 or 1 and whose input of the next layer
   lies near the second row space (:mod:`.one_hot`). The search starts from many points, for several weights.
2. The one-hot columns are rounded. The numbers are then solved for with these columns held.
3. Sums and differences of rows may also be valid rows, but their inputs of the next layer lie outside the second row
   space. The rows with the smallest distances are kept.

Nothing of this needs labels, a learning rate or the order of the batches. Only weight decay must be known with its
learning rate, because it adds the sent weights to the update. The labels follow from the update of the
first layer, by least squares with weights that are not negative. The attack cannot prove its rows. TabLeak (Vero et
al., ICML 2023) attacks the same message by optimisation. We know of no earlier description of this attack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.finders import starting_points
from leakgauge.attacks.analytic.levenberg import Problem, State, search
from leakgauge.attacks.analytic.local_layers import LocalLayers
from leakgauge.attacks.analytic.local_search import Findings, LocalSearch
from leakgauge.attacks.analytic.one_hot import OneHotProblem, one_hot_columns
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.observation import Observation
from leakgauge.core.seeding import generator

#: The shares of the update that are added to the sent weights. Each gives weights at which rows are searched for.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: The weight of the one-hot columns' errors while the numbers are solved for.
HELD = 100.0
#: The largest error of a one-hot column after rounding.
ROUNDED = 1e-2
#: The iterations in which the numbers are solved for.
ITERATIONS = 20
#: Rows with the same categories are the same if each number differs by less than this, in the model's units.
SAME = 0.25
#: A row's distance from the second row space is below this share of that of sums and differences of rows.
TELLING = 0.3
#: The number of sums and differences of rows that are drawn for this comparison.
COMPARED = 200


@dataclass(frozen=True, eq=False)
class HeldProblem(OneHotProblem):
    """The least-squares problem for the numbers of a row whose categories are known.

    A point is a vector of coordinates, followed by the values that the one-hot columns shall have. These values stay.
    """

    @property
    def rank(self) -> int:
        """The number of coordinates."""
        return len(self.last)

    def onto_plane(self, points: Tensor) -> Tensor:
        """Move each point to the nearest point for which the entry that is appended to the input equals 1."""
        moved = super().onto_plane(points[:, : self.rank])
        return torch.cat([moved, points[:, self.rank :]], 1)

    def directions(self) -> Tensor:
        """Return an orthonormal basis of the directions that change coordinates only, on the same plane."""
        moves = super().directions()
        return torch.cat([moves, moves.new_zeros(len(self.hot), moves.shape[1])])

    def evaluate(self, points: Tensor) -> State:
        """Return the errors of the one-hot columns, the values of :class:`.Problem`, and the squared residuals."""
        coordinates, wanted = points[:, : self.rank], points[:, self.rank :]
        errors = coordinates @ self.hot.T - wanted
        state = Problem.evaluate(self, coordinates)
        return errors, *state, state[-1] + HELD * errors.square().mean(1)

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point."""
        moves = directions[: self.rank]
        gradient, matrix = Problem.normal_equations(self, moves, state[1:-1])
        hot = self.hot @ moves
        weight = HELD / len(hot)
        return gradient + weight * state[0] @ hot, matrix + weight * (hot.T @ hot)


@dataclass(frozen=True, eq=False)
class TableLayers(LocalLayers):
    """The updates of two dense layers that get the rows of a table with one-hot columns."""

    @classmethod
    def of(cls, observation: Observation) -> TableLayers:
        """Return the updates of two dense layers, or raise :class:`.DoesNotFit` if the attack does not apply.

        Args:
            observation: The message of the client.
        """
        if not observation.data.one_hot_groups:
            raise DoesNotFit("made for tables with one-hot columns")
        layers = LocalLayers.of(observation)
        return cls(layers.chain, layers.samples, layers.changes, layers.first, layers.second)

    def problems(self) -> Iterator[OneHotProblem]:
        """Yield the search problem for each of the weights between the sent and the returned ones."""
        columns = one_hot_columns(self.chain)
        assert columns is not None
        last, hot = self.first.right[-1], columns @ self.first.right
        for share in SHARES:
            yield OneHotProblem(self.layer_at(share), last, self.second.right, self.chain.activation, hot)


@dataclass(frozen=True)
class LocalRows(LocalSearch):
    """The attack that solves for rows of a table in two dense layers' updates. See :func:`local_rows`."""

    samples_are: ClassVar[str] = "rows"

    def findings(self, observation: Observation, seed: int) -> Findings:
        """Return the empty findings on a message, or raise :class:`.DoesNotFit` if the attack does not apply.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
        """
        return _Rows(TableLayers.of(observation), self.starts, self.iterations, generator(seed, "local rows"))


class _Rows:
    """The rows that were found so far, each with its distance from the second row space."""

    def __init__(self, layers: TableLayers, starts: int, iterations: int, random: torch.Generator) -> None:
        self.layers, self.starts, self.iterations, self.random = layers, starts, iterations, random
        self.inputs = layers.first.right.T[:0]
        self.distances = self.inputs[:, 0]
        self.searches = 0

    def search_once(self) -> None:
        """Search at all weights, and add the rows that were found."""
        first = self.layers.first
        for problem in self.layers.problems():
            starts = starting_points(first, first.right[-1], self.starts, self.random)
            ends, _ = search(problem, starts, self.iterations)
            held = HeldProblem(problem.layer, problem.last, problem.span, problem.activation, problem.hot)
            wanted = (ends @ problem.hot.T).round().clamp(0, 1).unique(dim=0)
            nearest = torch.cdist(wanted, (ends @ problem.hot.T)).argmin(1)
            solved, _ = search(held, torch.cat([ends[nearest], wanted], 1), ITERATIONS)
            coordinates = solved[:, : held.rank]
            right = (coordinates @ problem.hot.T - wanted).abs().amax(1) < ROUNDED
            self._add(coordinates[right] @ first.right.T, problem.residuals_of_span(coordinates[right]).sqrt())
        self.searches += 1

    def _add(self, inputs: Tensor, distances: Tensor) -> None:
        """Add rows, and keep the better one of each two that are the same."""
        inputs, distances = torch.cat([self.inputs, inputs]), torch.cat([self.distances, distances])
        order = distances.argsort()
        inputs, distances = inputs[order], distances[order]
        near = torch.cdist(inputs, inputs, p=torch.inf) < SAME
        repeated = torch.tril(near, -1).any(1)
        self.inputs, self.distances = inputs[~repeated], distances[~repeated]

    def kept(self) -> tuple[Tensor, Tensor]:
        """Return the rows that lie much nearer to the second row space than sums and differences of rows."""
        count = min(self.layers.samples, len(self.inputs))
        if count < 3:
            return self.inputs[:count], self.distances[:count]
        best = self.inputs[:count]
        picked = torch.randint(count, (COMPARED, 3), generator=self.random).to(best.device)
        one, other, taken = best[picked].unbind(1)
        mixed = (one + other - taken) @ self.layers.first.right
        wrong = min(float(problem.residuals_of_span(mixed).sqrt().median()) for problem in self.layers.problems())
        near = self.distances[:count] < TELLING * wrong
        return best[near], self.distances[:count][near]


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs several local steps on a table with one-hot columns.

    Args:
        observation: The message of the client.
    """
    try:
        layers = TableLayers.of(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, f"the updates of two dense layers span the {layers.samples} rows of a table")


def local_rows(*, starts: int = 96, iterations: int = 60, attempts: int = 4) -> LocalRows:
    """Solve for the rows of a table with one-hot columns, after several local steps of SGD.

    The rows must enter the first of two consecutive dense layers with biases, with an elementwise activation between
    the layers. The learning rate, the batches and the labels may be unknown.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of iterations of each search.
        attempts: The largest number of searches in a row without a new row. The attack then gives up.
    """
    return LocalRows(starts, iterations, attempts)


SPECS = (
    AttackSpec(
        name="local_rows",
        factory=local_rows,
        summary="Local rows (ours): rows of tables with categories, after several local steps.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=31,
        audit={},
    ),
)
