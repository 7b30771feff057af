r"""Inversion with a search for the labels and for the batches of every epoch.

A client divides its samples into batches in a new random order in each epoch. The attacker does not know these orders,
and the label counts that it reads off are rough estimates after several large steps. With wrong labels or orders, the
distance between the updates has a minimum far from the client's samples. The gradient of the distance cannot correct
them, because labels and orders are discrete.

An *arrangement* is the label of each dummy sample and the order of the dummy samples in each epoch. The search changes
the label of one sample, swaps the labels of two samples, or swaps two samples of different batches in one epoch. A
change that lowers the distance is kept. Such a comparison costs one simulation without derivatives. Even with random
dummy samples, the search often finds the client's arrangement.

1. A pool of random samples and arrangements is drawn.
2. In each round, every member of the pool gets a search and some steps of the optimiser. Of several members with
   arrangements that differ only in the numbering of the samples, one is kept. The members with the highest loss are
   dropped.
3. The best member is optimised until the stopping rule ends the optimisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.free_targets import FreeTargets, Targets
from leakgauge.attacks.inversion.labels import granted_labels
from leakgauge.attacks.inversion.solve import Solution, Trace, solve
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.update_models import ClientModel, FullSimulation
from leakgauge.core.checks import whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: The number of single changes of an arrangement above which a search is hopeless, so that none is made.
MOST_CHANGES = 1000

#: A function that computes the distance between the updates for given samples and an arrangement of them.
Value = Callable[[Tensor, "Arrangement"], float]


@dataclass(frozen=True, eq=False)
class Arrangement:
    """The labels of the dummy samples, and their order in each epoch.

    Args:
        labels: The label of each sample, (samples,).
        orders: The samples of each epoch in the order of training, (epochs, samples).
        batch_of: The index of the batch of each place in an epoch, (samples,).
    """

    labels: Tensor
    orders: Tensor
    batch_of: Tensor

    @property
    def key(self) -> tuple[tuple[int, ...], ...]:
        """A value that is equal for arrangements that differ only in the numbering of the samples."""
        batches = torch.empty_like(self.orders).scatter_(1, self.orders, self.batch_of.expand_as(self.orders))
        return tuple(sorted(map(tuple, torch.cat([self.labels[None], batches]).T.tolist())))

    def changes(self, classes: int | None) -> int:
        """Return the largest number of arrangements with one change. Some of the changes may have no effect.

        Args:
            classes: The number of classes if the labels may change. ``None`` if the labels are known.
        """
        samples, batches = len(self.labels), len(self.batch_of.unique())
        pairs = samples * (samples - 1) // 2
        labels = 0 if classes is None else samples * (classes - 1) + pairs
        return labels + (len(self.orders) * pairs if batches > 1 else 0)

    def neighbours(self, classes: int | None) -> list[Arrangement]:
        """Return the arrangements with one change.

        Args:
            classes: The number of classes if the labels may change. ``None`` if the labels are known.
        """
        samples = len(self.labels)
        pairs = [(one, other) for one in range(samples) for other in range(one)]
        changed: list[Arrangement] = []
        if classes is not None:
            for one in range(samples):
                others = (label for label in range(classes) if label != self.labels[one])
                changed += [replace(self, labels=_with(self.labels, [one], [label])) for label in others]
            changed += [
                replace(self, labels=_with(self.labels, [one, other], self.labels[[other, one]].tolist()))
                for one, other in pairs
                if self.labels[one] != self.labels[other]
            ]
        for epoch, order in enumerate(self.orders):
            for one, other in pairs:
                if self.batch_of[one] != self.batch_of[other]:
                    orders = self.orders.clone()
                    orders[epoch] = _with(order, [one, other], order[[other, one]].tolist())
                    changed.append(replace(self, orders=orders))
        return changed


def _with(values: Tensor, places: list[int], changed: list[int]) -> Tensor:
    """Return a copy of a tensor with other values in some places."""
    copy = values.clone()
    copy[places] = torch.tensor(changed, dtype=values.dtype)
    return copy


def search(
    value: Value, inputs: Tensor, start: Arrangement, classes: int | None, limit: int, draw: torch.Generator
) -> Arrangement:
    """Return an arrangement with a lower distance, for fixed samples.

    Neighbours are tried in a random order, and the first better one is taken. The search ends where no neighbour is
    better.

    Args:
        value: The function that computes the distance.
        inputs: The samples.
        start: The arrangement at the start.
        classes: The number of classes if the labels may change. ``None`` if the labels are known.
        limit: The largest number of evaluations of the distance.
        draw: The random generator for the order of the neighbours.
    """
    best, lowest, spent = start, value(inputs, start), 1
    improved = True
    while improved and spent < limit:
        improved = False
        neighbours = best.neighbours(classes)
        for row in torch.randperm(len(neighbours), generator=draw)[: limit - spent].tolist():
            now = value(inputs, neighbours[row])
            spent += 1
            if now < lowest:
                best, lowest, improved = neighbours[row], now, True
                break
    return best


@dataclass(frozen=True)
class ArrangedInversion(Inversion):
    """An inversion that also searches for the labels and the batches of the samples, as described in this module.

    If nothing is to be searched, it is a plain inversion. Examples are a single sample, one gradient or local
    step, granted labels with a single batch in each epoch, and granted labels of every batch. It is also a plain
    inversion if an arrangement has so many changes that a search is hopeless.

    Args:
        pool: The number of members of the pool in the first round. Each later round has half as many.
        rounds: The number of steps of each member, for every round.
        limit: The largest number of simulations of one search.
        noise: The standard deviation of the normalised samples at the start. Small noise around the mean resembles the
            samples more than unit noise does, so the first search more often finds the right arrangement.
    """

    pool: int = 8
    rounds: tuple[int, ...] = (1, 2, 3)
    limit: int = 250
    noise: float = 0.3

    def __post_init__(self) -> None:
        whole_number("pool", self.pool)
        whole_number("limit", self.limit)

    def optimise(self, observation: Observation, targets: Targets, seed: int, report: Report) -> tuple[Solution, int]:
        """Return the solution with the lowest loss, and the number of dummy samples for each of the client's samples.

        Args:
            observation: The client's message, with known or estimated values of all training settings that the attack
                needs.
            targets: The labels of the samples at the start.
            seed: The seed of all random draws.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        first = _first(observation, targets)
        classes = observation.data.classes if granted_labels(observation) is None else None
        if first is None or not 0 < first.changes(classes) <= MOST_CHANGES:
            return super().optimise(observation, targets, seed, report)
        return _ArrangedRun(self, observation, classes, generator(seed, "arrangement")).run(first, report), 1

    def forecast(self, observation: Observation) -> float | None:
        """Return the expected run time on this machine in seconds. The pool takes about twice the time of the rest.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
        """
        seconds = super().forecast(observation)
        one = observation.kind == "gradient" or observation.training.samples == 1
        return seconds if seconds is None or one else 3 * seconds


def _first(observation: Observation, targets: Targets) -> Arrangement | None:
    """Return an arrangement in the order of the labels, or ``None`` if arrangements cannot be searched."""
    training, samples = observation.training, int(observation.training.need("samples"))
    labels = targets.head.decided(targets.start) if isinstance(targets, FreeTargets) else targets
    plain = observation.kind == "gradient" or training.steps == 1 or samples == 1
    if plain or labels.is_floating_point() or labels.shape != (samples,):
        return None
    epochs, sizes = int(training.need("epochs")), list(training.batch_sizes)
    batch_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Arrangement(labels.long().cpu(), torch.arange(samples).repeat(epochs, 1), batch_of)


class _ArrangedRun:
    """One attempt: the pool, its rounds, and the optimisation of its best member."""

    def __init__(
        self, attack: ArrangedInversion, observation: Observation, classes: int | None, draw: torch.Generator
    ) -> None:
        self.attack, self.observation, self.classes, self.draw = attack, observation, classes, draw
        self.data = attack.space.units(observation.data)
        self.client = FullSimulation(per_epoch=True).begin(observation, functional=False)
        self.still = FullSimulation(per_epoch=True, gradients="none").begin(observation, functional=False)

    def run(self, first: Arrangement, report: Report) -> Solution:
        """Return the solution of the best member, with the labels that the search found."""
        like = next(iter(self.observation.sent.values()))
        members, shape = self.attack.pool * self.attack.effort.restarts, (len(first.labels), *self.data.shape)
        pool: list[tuple[Tensor, Arrangement, Trace | None]] = []
        for _ in range(members):
            orders = torch.stack([torch.randperm(shape[0], generator=self.draw) for _ in first.orders])
            inputs = self.attack.noise * torch.randn(shape, generator=self.draw)
            pool.append((inputs.to(like), replace(first, orders=orders), None))
        total = self.attack.descent.steps

        def waiting(step: int, steps: int | None, loss: float) -> None:
            report(0, total, loss)

        for number, steps in enumerate(self.attack.rounds):
            results: dict[object, tuple[Solution, Arrangement]] = {}
            for inputs, arrangement, trace in pool[: max(1, members >> number)]:
                better = self.searched(inputs, arrangement)
                if better.key in results:
                    continue
                solution = _continued(trace, self.descend(inputs, better, steps, waiting))
                results[better.key] = solution, better
                if solution.outcome.kind == "interrupted":
                    return self.labelled(solution, better)
            ordered = sorted(results.values(), key=lambda result: result[0].loss)
            pool = [(one.variables["inputs"], arrangement, one.trace) for one, arrangement in ordered]
        inputs, arrangement, trace = pool[0]
        arrangement = self.searched(inputs, arrangement)
        return self.labelled(_continued(trace, self.descend(inputs, arrangement, None, report)), arrangement)

    def searched(self, inputs: Tensor, arrangement: Arrangement) -> Arrangement:
        """Return the result of a search with these samples."""
        return search(self.distance, inputs, arrangement, self.classes, self.attack.limit, self.draw)

    def distance(self, inputs: Tensor, arrangement: Arrangement) -> float:
        """Return the distance between the updates for given samples and an arrangement."""
        match = self.attack.matching_term(self.observation, self.arranged(self.still, arrangement))
        with torch.enable_grad():  # the simulation differentiates
            return float(match(inputs, arrangement.labels.to(inputs.device), {}, 0).detach())

    def descend(self, inputs: Tensor, arrangement: Arrangement, steps: int | None, report: Report) -> Solution:
        """Optimise the samples of one member, for some steps or until the stopping rule ends the optimisation."""
        client = self.arranged(self.client, arrangement)
        terms = self.attack.terms(self.observation, client, arrangement.labels.to(inputs.device))
        descent = self.attack.descent
        (solution,) = solve(
            lambda variables, constants, step: terms(variables, step),
            {"inputs": inputs[None]},
            descent if steps is None else replace(descent, stop=MaxSteps(steps), snapshot_every=None),
            project=self.attack.space.projection(self.data),
            report=report,
        )
        return solution

    @staticmethod
    def arranged(client: ClientModel, arrangement: Arrangement) -> ClientModel:
        """Return a model of the client that takes each sample once, and trains in the orders of the arrangement."""
        rows = arrangement.orders[: client.copies].flatten()

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            places = rows.to(inputs.device)
            return client(inputs[places], targets[places])

        return ClientModel(predict)

    def labelled(self, solution: Solution, arrangement: Arrangement) -> Solution:
        """Return the solution with the labels of the arrangement, as certain soft labels."""
        classes = self.observation.data.classes
        if classes is None:
            return solution
        certain = torch.nn.functional.one_hot(arrangement.labels, classes)
        return replace(solution, variables=solution.variables | {"labels": certain})


def _continued(before: Trace | None, solution: Solution) -> Solution:
    """Return a solution whose trace begins with the trace of the earlier rounds."""
    if before is None:
        return solution
    trace, steps = solution.trace, len(before.losses)
    spent = before.evaluations[-1:] if len(before.evaluations) else torch.zeros(1, dtype=torch.long)
    joined = Trace(
        torch.cat([before.losses, trace.losses]),
        {name: torch.cat([before.terms[name], values]) for name, values in trace.terms.items()},
        [(step + steps, iterate) for step, iterate in trace.snapshots],
        before.seconds + trace.seconds,
        torch.cat([before.evaluations, trace.evaluations + spent]),
    )
    return replace(solution, trace=joined, best_step=solution.best_step + steps)
