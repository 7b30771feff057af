"""Several updates of one client from several epochs, reconstructed together (AGIC, section IV-B)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.matching import match_greedily
from leakgauge.attacks.inversion.solve import Solution, solve
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.inversion.unknown_recipe import complete_recipe
from leakgauge.attacks.inversion.update_models import ClientModel
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report, progress_bar
from leakgauge.core.seeding import generator, seeded

Filter = Literal["sample", "batch", "none"]


@dataclass(frozen=True)
class Update:
    """One message of one epoch, and what it says by itself."""

    observation: Observation
    epoch: int
    samples: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Problem:
    """Samples that share updates, and these updates, each with the rows of its samples among these."""

    samples: list[int]
    updates: list[tuple[Update, list[int]]]


@dataclass(frozen=True, eq=False)
class JointReconstruction(Reconstruction):
    """What several epochs' updates say together.

    ``places`` is (epochs, samples): where each sample is among those of an epoch, its updates one after another; -1
    where it has none. ``epochs`` are the reconstructions from each epoch alone, in the same order, where every sample
    is in every epoch; ``alone`` are those of each epoch in its own order.
    """

    places: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))
    alone: tuple[Tensor, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class JointInversion:
    r"""Reconstruct each update by itself, find which samples recur, then reconstruct them from all their updates:

    .. math:: \min_x \; \sum_k \gamma_k \, \mathrm{Dist}(\nabla W'_k, \nabla W_k) + \mathrm{priors}(x) \qquad (5)

    ``first`` is the reconstruction of one update (step 1), ``joint`` the parts of the second. Samples of consecutive
    epochs are paired by :func:`~leakgauge.attacks.inversion.matching.match_greedily` after averaging over ``pool`` x ``pool``
    pixels; ``label_filter`` pairs only samples of the same label (``"sample"``), or of updates that have a label in
    common (``"batch"``, the paper's). ``gammas`` weight the epochs; the last goes for all that follow.

    Updates that share samples, directly or through others, are one problem, in which a sample is one variable
    however its batches overlap. It starts from the mean of the sample's reconstructions.
    """

    first: Inversion
    joint: Inversion
    gammas: tuple[float, ...] = (1.0, 0.1)
    pool: int = 2
    label_filter: Filter = "batch"

    def __post_init__(self) -> None:
        whole_number("pool", self.pool)
        if not self.gammas:
            raise InvalidInput("gammas must hold at least one weight, that of the first epoch")
        for gamma in self.gammas:
            positive("the weight of an epoch", gamma)
        if self.label_filter not in get_args(Filter):
            raise UnknownName("label filter", self.label_filter, get_args(Filter))

    def __call__(
        self,
        epochs: Sequence[Sequence[Observation]],
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        progress: bool | Report | None = None,
    ) -> JointReconstruction:
        """Attack the updates of two or more epochs, given epoch by epoch: ``[[first epoch's], [second's], ...]``.

        Ctrl-C ends the attack: what was not reconstructed jointly by then is as its updates alone gave it; before
        that, as the first epoch's alone did.
        """
        if len(epochs) < 2 or not all(epochs):
            raise InvalidInput("a joint reconstruction needs the updates of at least two epochs, none of them empty")
        if device is not None:
            epochs = [[one.to(device) for one in epoch] for epoch in epochs]
        if len({one.data for epoch in epochs for one in epoch}) > 1:
            raise InvalidInput("the updates are of different kinds of data; pass those of one client")
        first = epochs[0][0]
        began = time.perf_counter()
        with seeded(seed, "attack"), progress_bar(f"attacking {first.client}", progress) as report:
            result = self._run(epochs, seed, report)
        return replace(
            result,
            client=first.client,
            round=first.round,
            attack=repr(self),
            seed=seed,
            seconds=time.perf_counter() - began,
        )

    def alone(
        self, epochs: Sequence[Sequence[Observation]], *, seed: int = 0, progress: bool | Report | None = None
    ) -> tuple[list[Update], Outcome]:
        """Each update reconstructed by itself (step 1), and how that ended; after Ctrl-C those that were done."""
        flat = [(number, one) for number, epoch in enumerate(epochs) for one in epoch]
        observations = [complete_recipe(one, generator(seed, "recipe", row)) for row, (_, one) in enumerate(flat)]
        results = self.first.each(observations, seed=seed, progress=progress)
        updates = []
        for observation, (epoch, _), one in zip(observations, flat, results, strict=False):
            assert one.labels is not None  # an inversion says what it took them to be
            updates.append(Update(observation, epoch, one.samples, one.labels))
        return updates, results[-1].outcome

    def _run(self, epochs: Sequence[Sequence[Observation]], seed: int, report: Report) -> JointReconstruction:
        number = sum(map(len, epochs))
        before, after = (number * (one.stop.max_steps or 0) for one in (self.first, self.joint))
        updates, outcome = self.alone(epochs, seed=seed, progress=_from(report, 0, before + after))
        if outcome.kind == "interrupted":
            updates = [one for one in updates if one.epoch == 0]
        samples = [torch.cat([one.samples for one in group]) for group in _by_epoch(updates)]
        places, labels = self.match(updates)
        start = torch.stack([_mean(samples, column) for column in places.T.tolist()])
        found, losses = start.clone(), []
        for number, problem in enumerate(_problems(updates, places)):
            if outcome.kind == "interrupted":
                break
            counted = _from(report, before + number * (self.joint.stop.max_steps or 0), before + after)
            solution = self._solve(problem, start[problem.samples], counted)
            found[problem.samples] = self._seen(updates[0].observation, solution.variables["inputs"])
            losses.append(solution.loss)
            outcome = solution.outcome
        complete = bool((places >= 0).all())
        return JointReconstruction(
            found,
            labels,
            outcome,
            sum(losses) / len(losses) if losses else math.nan,
            epochs=torch.stack([samples[epoch][rows] for epoch, rows in enumerate(places)]) if complete else None,
            places=places,
            alone=tuple(samples),
        )

    def match(self, updates: list[Update]) -> tuple[Tensor, Tensor]:
        """Where each sample is in each epoch (-1: nowhere), and its label in the first that has it."""
        groups = _by_epoch(updates)
        samples, labels = (
            [torch.cat([getattr(one, which) for one in g]) for g in groups] for which in ("samples", "labels")
        )
        chains: list[list[int]] = [[place] for place in range(len(samples[0]))]
        for number in range(1, len(groups)):
            # A sample that found no partner is looked for as it was seen last.
            last = [max((e, p) for e, p in enumerate(chain) if p >= 0) for chain in chains]
            seen = torch.stack([samples[epoch][place] for epoch, place in last])
            pairs = dict(
                match_greedily(seen, samples[number], pool=self.pool, allowed=self._allowed(groups, last, number))
            )
            for row, chain in enumerate(chains):
                chain.append(pairs.get(row, -1))
            new = sorted(set(range(len(samples[number]))) - set(pairs.values()))
            chains += [[-1] * number + [place] for place in new]
        own = [next(labels[e][p] for e, p in enumerate(chain) if p >= 0) for chain in chains]
        return torch.tensor(chains).T, torch.stack(own)

    def _allowed(self, groups: list[list[Update]], last: list[tuple[int, int]], number: int) -> Tensor | None:
        """Which samples may be the same, by their labels: (those known so far, those of epoch ``number``)."""
        if self.label_filter == "none":
            return None
        sets = [_label_sets(group, self.label_filter == "batch") for group in groups]
        return torch.tensor([[bool(sets[epoch][place] & other) for other in sets[number]] for epoch, place in last])

    def _solve(self, problem: Problem, start: Tensor, report: Report) -> Solution:
        """Reconstruct some samples from all the updates they are in."""
        observation = problem.updates[0][0].observation
        data = self.joint.units(observation.data)
        like = next(iter(observation.sent.values()))
        variables = {"inputs": data.normalise(start.to(like))[None]}
        parts: list[Callable[[Params, int], Tensor]] = []
        for number, (update, rows) in enumerate(problem.updates):
            client = self.joint.update_model.begin(update.observation, functional=False)
            if client.copies > 1:
                raise InvalidInput("a joint reconstruction wants an update model in which epochs share their samples")
            variables |= {f"{name}/{number}": value[None] for name, value in client.extra.items()}
            parts.append(self._part(update, torch.tensor(rows, device=like.device), client, number))
        priors = [prior for prior in self.joint.priors if prior.applies(data)]

        def loss(variables: Params, _: Params, step: int) -> Params:
            match = torch.stack([part(variables, step) for part in parts]).sum()
            return {"match": match} | {prior.name: prior(variables["inputs"][None], data) for prior in priors}

        return solve(
            loss,
            variables,
            optimiser=self.joint.optimiser,
            schedule=self.joint.schedule,
            stop=self.joint.stop,
            project=self.joint.projection(data),
            keep_last=self.joint.keep_last,
            report=report,
        )[0]

    def _part(self, update: Update, rows: Tensor, client: ClientModel, number: int) -> Callable[[Params, int], Tensor]:
        """One update's part of the loss (one term of equation 5)."""
        gamma = self.gammas[min(update.epoch, len(self.gammas) - 1)]
        match, labels = self.joint.matching(update.observation, client), update.labels.to(rows.device)

        def part(variables: Params, step: int) -> Tensor:
            extra = {name: variables[f"{name}/{number}"] for name in client.extra}
            return gamma * match(variables["inputs"][rows], labels, extra, step)

        return part

    def _seen(self, observation: Observation, inputs: Tensor) -> Tensor:
        """Samples as a person sees them."""
        data = self.joint.units(observation.data)
        seen = data.denormalise(inputs).detach().cpu()
        return seen.clamp(0, 1) if data.bounded else seen


def _mean(samples: list[Tensor], places: list[int]) -> Tensor:
    """The mean of one sample's reconstructions, of those epochs that have it."""
    return torch.stack([samples[epoch][place] for epoch, place in enumerate(places) if place >= 0]).mean(0)


def _by_epoch(updates: list[Update]) -> list[list[Update]]:
    return [[one for one in updates if one.epoch == epoch] for epoch in range(1 + updates[-1].epoch)]


def _label_sets(group: list[Update], of_batch: bool) -> list[set[int]]:
    """For each sample of an epoch the labels by which it may be found: its own, or all of its update."""
    every = [(one.labels.tolist(), label) for one in group for label in one.labels.tolist()]
    return [set(batch) if of_batch else {label} for batch, label in every]


def _problems(updates: list[Update], places: Tensor) -> list[Problem]:
    """The samples in groups that share no update."""
    owner = {(epoch, place): sample for epoch, row in enumerate(places.tolist()) for sample, place in enumerate(row)}
    own: list[list[int]] = []
    passed = [0] * len(places)
    for update in updates:
        begin = passed[update.epoch]
        passed[update.epoch] = end = begin + len(update.samples)
        own.append([owner[update.epoch, place] for place in range(begin, end)])
    groups: list[set[int]] = []
    for samples in map(set, own):
        touching = [group for group in groups if group & samples]
        groups = [group for group in groups if not group & samples] + [samples.union(*touching)]
    problems = []
    for group in sorted(groups, key=min):
        rows = sorted(group)
        row = {sample: row for row, sample in enumerate(rows)}
        members = [(one, [row[s] for s in mine]) for one, mine in zip(updates, own, strict=True) if mine[0] in group]
        problems.append(Problem(rows, members))
    return problems


def _from(report: Report, before: int, total: int) -> Report:
    return lambda step, _, loss: report(before + step, total, loss)
