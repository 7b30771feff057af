r"""Inversion with a prior whose weight falls. Held-out entries of the message show which weight is best.

The best weight of a prior depends on the network, on the data and on the noise in the message. An attacker cannot see
which weight gives the best samples. It can see which weight *predicts* best. A share of the message's entries is held
out. The other entries are matched while the weight of the priors falls. The *held-out error* is the distance between
the held-out entries and their prediction. It stops falling as soon as the samples fit the noise of the matched entries,
because this noise does not predict the held-out entries.

1. In the first stage, which is called the path, the learning rate is constant, and the factor of the priors falls from
   1 to a small number. Large pictures are optimised on a coarse grid here (:mod:`.coarse`).
2. The factor at the point with the lowest held-out error is chosen. For a message without noise, this is the end of the
   path.
3. From this point, all entries are matched with this factor, and the learning rate falls.

The *guess* is a constant sample at the mean of the data, or mid-grey if the mean is unknown. It is made without the
message. The attack returns the guess under two conditions. First, the message holds noise, or is pruned or quantised.
Second, no point of the path predicts the held-out entries clearly better than the guess and random samples do. For a
clean message the guess is never returned, because a bad prediction then only means that the attack has failed.

In a pruned message (:mod:`leakgauge.attacks.inversion.compression`), only the entries that were sent are matched or
held out. If pruning kept the largest entries, the predictions of all other entries must not exceed the smallest entry
that was sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.attempts import counted_from
from leakgauge.attacks.inversion.batch_statistics import revealed_statistics
from leakgauge.attacks.inversion.coarse import Grid
from leakgauge.attacks.inversion.compression import Message, pruning_of
from leakgauge.attacks.inversion.free_targets import FreeTargets, Targets, values_of
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.noise_level import noise_in
from leakgauge.attacks.inversion.optimisers import Constant, Ramp, Schedule
from leakgauge.attacks.inversion.probed_labels import has_formula
from leakgauge.attacks.inversion.settings import WarmStart
from leakgauge.attacks.inversion.solve import Descent, Solution, Trace, solve
from leakgauge.attacks.inversion.stopping import MaxSteps, Outcome
from leakgauge.attacks.inversion.update_models import ClientModel
from leakgauge.core.checks import not_negative, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: The gain in log-likelihood on the held-out entries above which a point of the path is better than blind samples.
CLEARLY = 5.0
#: The number of random samples that a point of the path is compared with, beside the guess.
BLIND = 3
#: The number of held-out entries below which the guess is never returned, because so few entries prove nothing. It does
#: not apply to pruned messages, whose few entries are all that the attacker has.
ENOUGH_ENTRIES = 200
#: The share by which the held-out error may exceed the lowest one, above the noise, to keep a stronger prior.
TOLERANCE = 0.25
#: The outcome if the message explains nothing beyond the guess.
NOTHING_EXPLAINED = (
    "the message explains nothing beyond a blind guess, so the guess is returned (held-out entries of the message are "
    "predicted no better by any reconstruction)"
)
#: The outcome if the search explains nothing, although the message has enough entries without noise.
SEARCH_FAILED = (
    "the search failed, so a blind guess is returned (blind samples predict held-out entries of the message as well, "
    "although the entries that were sent outnumber the unknown values)"
)

#: A function that computes the terms of the loss from the variables and the step.
Terms = Callable[[Params, int], Params]


@dataclass(frozen=True)
class Path:
    """The settings of the first stage of the attack, in which the factor of all priors falls step by step.

    Args:
        end: The factor of all priors at the end of the stage. The factor at the start is 1.
        share: The share of all steps that belong to the stage.
        held_out: The share of the message's entries that are held out, which means that they are not matched.
        points: The number of times at which the held-out entries are compared with their prediction.
    """

    end: float = 1e-3
    share: float = 0.6
    held_out: float = 0.2
    points: int = 16

    def __post_init__(self) -> None:
        for name in ("end", "share", "held_out"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InvalidInput(f"{name} of a path must lie between 0 and 1, not {value!r}")
        whole_number("points", self.points)


@dataclass(frozen=True)
class PriorPath(Inversion):
    """An inversion that chooses the weight of its priors with held-out entries of the message.

    The samples are not fitted to the held-out entries. The best weight is the one that predicts these entries best.

    Args:
        path: The settings of the first stage, in which the weights of the priors fall.
        statistics: The weight of the distance to the batch statistics that the message reveals
            (:mod:`leakgauge.attacks.inversion.batch_statistics`).
    """

    chooses_guess: ClassVar[bool] = True
    path: Path = Path()
    statistics: float = 1.0

    def __post_init__(self) -> None:
        not_negative("the weight of batch statistics", self.statistics)
        if isinstance(self.space.start, WarmStart):
            raise InvalidInput("a path of prior weights starts from noise, not from a WarmStart. Use start='normal'.")

    def run_each(
        self, observations: Sequence[Observation], seeds: Sequence[int], report: Report
    ) -> list[Reconstruction]:
        """Reconstruct the samples of several clients, one client after another.

        Args:
            observations: One message for each client.
            seeds: One seed for each client.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        return Attack.run_each(self, observations, seeds, report)

    def _run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        return super(PriorPath, self._with_readable_labels(observation))._run(observation, seed, report)

    def _with_readable_labels(self, observation: Observation) -> Self:
        """Return this attack, or an attack that infers labels from the last layer's kernel instead of its bias.

        The bias cannot be used if pruning removed some of its entries.
        """
        pruned = pruning_of(observation)
        if pruned is None or all(map(math.isfinite, pruned.limits.values())):
            return self
        if not isinstance(self.labels, LastLayer) or self.labels.read is not None or not has_formula(observation):
            return self
        last = list(pruned.sent.values())[-1]
        missing = last.dim() == 1 and not bool(last.all())
        return replace(self, labels=replace(self.labels, read="kernel")) if missing else self

    def optimise(self, observation: Observation, targets: Targets, seed: int, report: Report) -> tuple[Solution, int]:
        """Return the best solution, and the number of copies of each sample in this solution.

        Args:
            observation: The message of the client, with all training settings known or estimated.
            targets: The targets of the samples, which are known or start the optimisation.
            seed: The seed of all random draws.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        client = self.client(observation, targets)
        draws = [generator(seed, "start", restart) for restart in range(self.effort.restarts)]
        grid = Grid.of(observation.data)
        blind = [self._blind(observation, client.copies, draw) for draw in draws]
        starts = {"inputs": torch.stack([grid.thinned(start) for start in blind])}
        starts |= {name: torch.stack([value] * len(draws)) for name, value in client.extra.items()}
        if isinstance(targets, FreeTargets):
            starts["labels"] = torch.stack(self._label_starts(observation, targets, seed))
        walk = _Walk(self, observation, client, values_of(targets), generator(seed, "held out"))
        return walk.solution(starts, report), client.copies


def strongest(matches: Sequence[float], floor: float) -> int:
    """Return the index of the strongest prior that predicts held-out entries about as well as the best prior.

    If a weaker prior hardly improves the prediction, it only adds details that the message does not determine.

    Args:
        matches: For each prior, from the strongest to the weakest, the distance between the held-out entries and their
            prediction.
        floor: The distance that even the true samples have, because of noise in the message.

    >>> strongest([0.5, 0.11, 0.1, 0.12], floor=0.0)
    1
    >>> strongest([0.5, 0.11, 0.1, 0.12], floor=0.09)
    2
    """
    limit = min(matches) + TOLERANCE * max(0.0, min(matches) - floor)
    return next(index for index, match in enumerate(matches) if match <= limit)


class _Walk:
    """An attack on one client in two stages.

    In the first stage (the path), the weights of the priors fall, and some entries of the message are held out. In the
    second stage, the weights of the priors are fixed, and all entries are matched.
    """

    def __init__(
        self,
        attack: PriorPath,
        observation: Observation,
        client: ClientModel,
        targets: Tensor,
        draw: torch.Generator,
    ) -> None:
        self.attack, self.observation, self.client, self.targets = attack, observation, client, targets
        self.draw = draw
        self.data = attack.space.units(observation.data)
        self.grid = Grid.of(self.data)
        self.priors = [prior for prior in attack.priors if prior.applies(self.data)]
        free = attack.matching.objective.scale_free
        observed = observation.difference() if free else observation.summed_gradient()
        share = attack.path.held_out
        held = {name: (torch.rand(value.shape, generator=draw) < share).to(value) for name, value in observed.items()}
        self.pruned = pruning_of(observation)
        sent = {name: torch.ones_like(mask) for name, mask in held.items()} if self.pruned is None else self.pruned.sent
        self.all = Message(observed) if self.pruned is None else Message.of(observed, sent, self.pruned)
        self.fitted = Message.of(observed, {name: sent[name] * (1 - mask) for name, mask in held.items()}, self.pruned)
        self.held = Message.of(observed, {name: sent[name] * mask for name, mask in held.items()})
        self.total = attack.descent.steps
        self.path_steps = min(self.total, max(1, round(attack.path.share * self.total)))
        self.floor = 1 - math.sqrt(1 - noise_in(observation))
        self.uncertain = self.floor > 0 or self.pruned is not None
        self.statistics = revealed_statistics(observation) if attack.statistics > 0 else None
        self.fade = Ramp(1.0, attack.path.end, 1.0)

    def solution(self, starts: Params, report: Report) -> Solution:
        """Return the best solution from several starting points.

        Args:
            starts: The starting points, stacked in the first dimension.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        every = max(1, self.path_steps // self.attack.path.points)
        descent = replace(
            self.attack.descent,
            schedule=Constant(),
            stop=MaxSteps(self.path_steps),
            keep_last=True,
            snapshot_every=every,
        )
        paths = self._solve(starts, descent, self.fitted, self.fade, counted_from(report, 0, self.total))
        stopped = [path for path in paths if path.outcome.kind == "interrupted"]
        if stopped:
            best = min(paths, key=lambda path: path.loss)
            return replace(best, variables=self.grid.whole(best.variables))
        step, point, gain = self._chosen(paths)
        if gain < CLEARLY:
            return self._guess(point, paths[0].trace)
        return self._finish(point, step, paths[0].trace, report)

    def _solve(
        self, starts: Params, descent: Descent, message: Message, fade: Schedule, report: Report
    ) -> list[Solution]:
        terms, limit = self._terms(message), descent.steps

        def loss(variables: Params, constants: Params, step: int) -> Params:
            return terms(self.grid.whole(variables), fade(step, limit))

        project = self.attack.space.projection(self.data)
        return solve(loss, starts, descent, project=project, report=report)

    def _terms(self, message: Message) -> Callable[[Params, float], Params]:
        """Return a function that computes the terms of the loss from the variables and the factor of the priors."""
        distance = self.attack.matching.objective.begin(self.observation.model)

        def terms(variables: Params, factor: float) -> Params:
            predicted, statistics = self._predicted(variables), self._statistics_term()
            matched = {"match": distance(message.visible(predicted), message.observed)} | statistics
            epochs = variables["inputs"].unflatten(0, (self.client.copies, -1))
            return matched | {prior.name: factor * prior(epochs, self.data) for prior in self.priors}

        return terms

    def _loss(self, variables: Params, factor: float) -> float:
        """Return the loss over all entries of the message."""
        return sum(float(term.detach()) for term in self._terms(self.all)(variables, factor).values())

    def _predicted(self, variables: Params) -> Params:
        inputs, given = variables["inputs"], self.observation.data
        seen = inputs if self.data is given else given.normalise(self.data.denormalise(inputs))
        with self.statistics.recorded() if self.statistics else nullcontext():
            return self.client(seen, self.targets, **{name: variables[name] for name in self.client.extra})

    def _statistics_term(self) -> Params:
        """Return the weighted distance between the batch statistics of the last prediction and those of the message.

        The result is empty if the message reveals no batch statistics.
        """
        distance = self.statistics.distance() if self.statistics else None
        return {} if distance is None else {"statistics": self.attack.statistics * distance}

    def _chosen(self, paths: Sequence[Solution]) -> tuple[int, Params, float]:
        """Return the best step of all runs, the variables at this step, and their gain over blind samples.

        Blind samples are drawn without the message. The gain is a difference of log-likelihoods (:meth:`_gain`). It is
        infinite for a message without noise.
        """
        last = self.path_steps
        points = [
            [(at, self.grid.whole(point)) for at, point in [*path.trace.snapshots, (last, path.variables)] if at > 0]
            for path in paths
        ]
        cosines = [[self._cosine(variables, self.held) for _, variables in path] for path in points]
        best = strongest([1 - max(path[index] for path in cosines) for index in range(len(points[0]))], self.floor)
        step = points[0][best][0]
        losses = [self._loss(path[best][1], self.fade(step, last)) for path in points]
        row = losses.index(min(losses))
        variables = points[row][best][1]
        return step, variables, self._gain(cosines[row][best], variables) if self.uncertain else math.inf

    def _gain(self, cosine: float, variables: Params) -> float:
        """Return the log-likelihood of the held-out entries, minus their log-likelihood for the best blind samples.

        The blind samples are made without the message. They are the constant guess and several random starting points.
        The likelihood is that of Gaussian noise of unknown size on a prediction of unknown scale.

        Args:
            cosine: The cosine between the held-out entries and their prediction.
            variables: The variables of the prediction.
        """
        entries = sum(int((value != 0).sum()) for value in self.held.observed.values())
        if entries < ENOUGH_ENTRIES and self.pruned is None:
            return math.inf
        draws = [self.attack._blind(self.observation, self.client.copies, self.draw) for _ in range(BLIND)]
        inputs = [torch.zeros_like(variables["inputs"]), *draws]
        without = max(self._cosine(variables | {"inputs": value}, self.held) for value in inputs)
        left, blind = (max(1e-12, 1 - max(0.0, value) ** 2) for value in (cosine, without))
        return entries / 2 * math.log(blind / left)

    def _cosine(self, variables: Params, message: Message) -> float:
        predicted = message.visible(self._predicted(variables))
        product, square, length = (
            sum(float((one[name].detach().double() * other[name].double()).sum()) for name in message.observed)
            for one, other in (
                (predicted, message.observed),
                (predicted, {name: value.detach() for name, value in predicted.items()}),
                (message.observed, message.observed),
            )
        )
        known = square * length > 0 and math.isfinite(product / math.sqrt(square * length))
        return product / math.sqrt(square * length) if known else 0.0

    def _guess(self, variables: Params, trace: Trace) -> Solution:
        blind = variables | {"inputs": torch.zeros_like(variables["inputs"])}
        loss = self._loss(blind, 1.0)
        entries = sum(int((value != 0).sum()) for value in self.all.observed.values())
        outcome = Outcome("guess", self.path_steps - 1, NOTHING_EXPLAINED)
        if self.floor == 0 and entries >= variables["inputs"].numel():
            outcome = Outcome("finished", self.path_steps - 1, SEARCH_FAILED)
        return Solution(blind, loss, 0, outcome, trace)

    def _finish(self, start: Params, step: int, before: Trace, report: Report) -> Solution:
        """Continue from one step of the first stage, and match all entries with the priors' factor at this step."""
        factor, left = self.fade(step, self.path_steps), self.total - self.path_steps
        if not left:
            loss = self._loss(start, factor)
            return Solution(start, loss, step, self._outcome(loss, factor), before)
        descent = self.grid.refining(replace(self.attack.descent, stop=MaxSteps(left), keep_last=False))
        starts = {name: value.unsqueeze(0) for name, value in start.items()}
        counted = counted_from(report, self.path_steps, self.total)
        (last,) = self._solve(starts, descent, self.all, Constant(factor), counted)
        outcome = last.outcome
        if outcome.kind == "finished":
            outcome = self._outcome(last.loss, factor)
        elif outcome.kind == "interrupted":
            at = self.path_steps + outcome.step
            outcome = Outcome("interrupted", at, f"interrupted at step {at}, and the best iterate so far is returned")
        best_step = self.path_steps + last.best_step
        return replace(last, outcome=outcome, best_step=best_step, trace=_joined(before, last.trace))

    def _outcome(self, loss: float, factor: float) -> Outcome:
        sentence = (
            f"used all {self.total:,} steps, with a last loss of {loss:.3g} and {factor:.2g} of the prior's weight"
        )
        if factor > 1.5 * self.attack.path.end:
            sentence += ", because with less of it held-out entries of the message are predicted worse"
        return Outcome("finished", self.total - 1, sentence)


def _joined(first: Trace, second: Trace) -> Trace:
    """Join the record of a run and the record of a second run that continues it."""
    before = int(first.evaluations[-1]) if len(first.evaluations) else 0
    return Trace(
        torch.cat([first.losses, second.losses]),
        {name: torch.cat([values, second.terms[name]]) for name, values in first.terms.items()},
        [],
        first.seconds + second.seconds,
        torch.cat([first.evaluations, second.evaluations + before]),
    )
