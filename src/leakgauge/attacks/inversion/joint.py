"""Joint reconstruction of samples from the updates of one client in several epochs (AGIC, section IV-B)."""

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
from leakgauge.attacks.inversion.attempts import counted_from
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

#: The rule for allowed pairs of samples. Their labels are equal, their updates have a label in common, or all pairs are
#: allowed.
Filter = Literal["sample", "batch", "none"]


@dataclass(frozen=True)
class Update:
    """One message of one epoch, and the reconstruction from this message alone.

    Args:
        observation: The message.
        epoch: The index of the epoch, from 0.
        samples: The reconstruction from this message alone.
        labels: The labels of these samples.
    """

    observation: Observation
    epoch: int
    samples: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Problem:
    """A group of samples that are reconstructed together, because the same updates contain them.

    Args:
        samples: The indices of the samples.
        updates: The updates of these samples. Each update comes with the positions of its samples in ``samples``.
    """

    samples: list[int]
    updates: list[tuple[Update, list[int]]]


@dataclass(frozen=True, eq=False)
class JointReconstruction(Reconstruction):
    """The reconstruction from the updates of several epochs.

    If every sample occurs in every epoch, ``epochs`` holds the reconstructions from each epoch alone, in the order of
    ``samples``.

    Args:
        places: The position of each sample in each epoch, (epochs, samples). Within an epoch, the samples of the first
            update come first, then the samples of the second update, and so on. The position is -1 if the sample does
            not occur in the epoch.
        alone: The reconstructions from each epoch alone, in the order of the samples in the epoch.
    """

    places: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))
    alone: tuple[Tensor, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class JointInversion:
    r"""The attack that reconstructs each sample from all updates that contain the sample.

    First, each update is reconstructed separately. Then the attack identifies samples that occur in several epochs.
    Finally, the attack optimises each sample :math:`x` such that all updates with this sample are matched together.
    With :math:`\gamma_k` the weight of update :math:`k`, :math:`\nabla W'_k` its prediction and :math:`\nabla W_k` its
    observed value, the loss is

    .. math:: \min_x \; \sum_k \gamma_k \, \mathrm{Dist}(\nabla W'_k, \nabla W_k) + \mathrm{priors}(x) \qquad (5)

    Samples of consecutive epochs are paired by :func:`~leakgauge.attacks.inversion.matching.match_greedily`. Updates
    that share samples, directly or through other updates, are matched in one optimisation. In this optimisation, each
    sample is one variable, even if several updates contain the sample. The variable starts from the mean of the
    sample's reconstructions.

    Args:
        first: The inversion that reconstructs each update separately (step 1).
        joint: The inversion whose settings are used to match all updates together (step 2).
        gammas: The weights of the epochs. The last weight also applies to all later epochs.
        pool: The side length, in pixels, of the squares over which samples are averaged before they are paired.
        label_filter: The rule for allowed pairs of samples. ``"sample"`` allows pairs with the same label. ``"batch"``,
            as in the paper, allows pairs whose updates have a label in common. ``"none"`` allows all pairs.
    """

    first: Inversion
    joint: Inversion
    gammas: tuple[float, ...] = (1.0, 0.1)
    pool: int = 2
    label_filter: Filter = "batch"

    def __post_init__(self) -> None:
        whole_number("pool", self.pool)
        if not self.gammas:
            raise InvalidInput("gammas must hold at least one weight, which is that of the first epoch")
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
        """Attack the updates of two or more epochs.

        Ctrl-C ends the attack. For a sample that was not yet reconstructed jointly, the result is the mean of the
        separate reconstructions of this sample. If an interrupt comes in step 1, while each update is still
        reconstructed separately, the result holds only the samples of the first epoch.

        Args:
            epochs: One list of observations for each epoch.
            seed: The seed of all random draws.
            device: The device of the computation. By default, the device of the observations.
            progress: Whether a progress bar is shown, or a function ``report(step, total, loss)``. By default, a bar is
                shown if standard error is a terminal.
        """
        if len(epochs) < 2 or not all(epochs):
            raise InvalidInput("a joint reconstruction needs the updates of at least two epochs, none of them empty")
        if device is not None:
            epochs = [[observation.to(device) for observation in epoch] for epoch in epochs]
        if len({observation.data for epoch in epochs for observation in epoch}) > 1:
            raise InvalidInput("the updates are of different kinds of data. Pass the updates of one client")
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
        """Reconstruct each update separately (step 1). Return the updates and the outcome of the last reconstruction.

        After Ctrl-C, only the updates that were already reconstructed are returned.

        Args:
            epochs: One list of observations for each epoch.
            seed: The seed of all random draws.
            progress: Whether a progress bar is shown, or a function ``report(step, total, loss)``. By default, a bar is
                shown if standard error is a terminal.
        """
        flat = [(number, observation) for number, epoch in enumerate(epochs) for observation in epoch]
        observations = [complete_recipe(one, generator(seed, "recipe", row)) for row, (_, one) in enumerate(flat)]
        results = self.first.each(observations, seed=seed, progress=progress)
        updates = []
        for observation, (epoch, _), result in zip(observations, flat, results, strict=False):
            assert result.labels is not None  # an inversion returns the labels that it used
            updates.append(Update(observation, epoch, result.samples, result.labels))
        return updates, results[-1].outcome

    def _run(self, epochs: Sequence[Sequence[Observation]], seed: int, report: Report) -> JointReconstruction:
        messages, steps = sum(map(len, epochs)), self.joint.descent.steps
        before, after = messages * self.first.descent.steps, messages * steps
        updates, outcome = self.alone(epochs, seed=seed, progress=counted_from(report, 0, before + after))
        if outcome.kind == "interrupted":
            updates = [update for update in updates if update.epoch == 0]
        samples = [torch.cat([update.samples for update in group]) for group in _by_epoch(updates)]
        places, labels = self.match(updates)
        start = torch.stack([_mean(samples, column) for column in places.T.tolist()])
        reconstructed, losses = start.clone(), []
        for number, problem in enumerate(_problems(updates, places)):
            if outcome.kind == "interrupted":
                break
            counted = counted_from(report, before + number * steps, before + after)
            solution = self._solve(problem, start[problem.samples], counted)
            reconstructed[problem.samples] = self._seen(updates[0].observation, solution.variables["inputs"])
            losses.append(solution.loss)
            outcome = solution.outcome
        complete = bool((places >= 0).all())
        return JointReconstruction(
            reconstructed,
            labels,
            outcome,
            sum(losses) / len(losses) if losses else math.nan,
            epochs=torch.stack([samples[epoch][rows] for epoch, rows in enumerate(places)]) if complete else None,
            places=places,
            alone=tuple(samples),
        )

    def match(self, updates: list[Update]) -> tuple[Tensor, Tensor]:
        """Return the position of each sample in each epoch, and the label of each sample.

        The positions have the shape (epochs, samples). A position is -1 if the sample does not occur in the epoch. The
        label of a sample is its label in the first epoch that contains the sample.

        Args:
            updates: The updates with their reconstructions, epoch by epoch.
        """
        groups = _by_epoch(updates)
        samples = [torch.cat([update.samples for update in group]) for group in groups]
        labels = [torch.cat([update.labels for update in group]) for group in groups]
        chains: list[list[int]] = [[place] for place in range(len(samples[0]))]
        for number in range(1, len(groups)):
            # A sample without a partner in one epoch is compared by its last reconstruction.
            last = [max((epoch, place) for epoch, place in enumerate(chain) if place >= 0) for chain in chains]
            seen = torch.stack([samples[epoch][place] for epoch, place in last])
            pairs = dict(
                match_greedily(seen, samples[number], pool=self.pool, allowed=self._allowed(groups, last, number))
            )
            for row, chain in enumerate(chains):
                chain.append(pairs.get(row, -1))
            new = sorted(set(range(len(samples[number]))) - set(pairs.values()))
            chains += [[-1] * number + [place] for place in new]
        first_labels = [
            next(labels[epoch][place] for epoch, place in enumerate(chain) if place >= 0) for chain in chains
        ]
        return torch.tensor(chains).T, torch.stack(first_labels)

    def _allowed(self, groups: list[list[Update]], last: list[tuple[int, int]], number: int) -> Tensor | None:
        """Return a mask of the pairs of samples whose labels allow a match, or ``None`` if all pairs are allowed.

        The mask has the shape (samples of all earlier epochs, samples of the epoch with the index ``number``).
        """
        labels = groups[0][0].labels
        if self.label_filter == "none" or labels.dim() > 1 or labels.is_floating_point():  # only classes are compared
            return None
        sets = [_label_sets(group, self.label_filter == "batch") for group in groups]
        return torch.tensor([[bool(sets[epoch][place] & other) for other in sets[number]] for epoch, place in last])

    def _solve(self, problem: Problem, start: Tensor, report: Report) -> Solution:
        """Reconstruct the samples of one group from all updates that contain these samples."""
        observation = problem.updates[0][0].observation
        data = self.joint.space.units(observation.data)
        like = next(iter(observation.sent.values()))
        variables = {"inputs": data.normalise(start.to(like))[None]}
        parts: list[Callable[[Params, int], Tensor]] = []
        for number, (update, rows) in enumerate(problem.updates):
            client = self.joint.matching.update_model.begin(update.observation, functional=False)
            if client.copies > 1:
                raise InvalidInput(
                    "a joint reconstruction needs an update model in which epochs share their samples. "
                    "Use one without per_epoch=True"
                )
            variables |= {f"{name}/{number}": value[None] for name, value in client.extra.items()}
            parts.append(self._part(update, torch.tensor(rows, device=like.device), client, number))
        priors = [prior for prior in self.joint.priors if prior.applies(data)]

        def loss(variables: Params, _: Params, step: int) -> Params:
            match = torch.stack([part(variables, step) for part in parts]).sum()
            return {"match": match} | {prior.name: prior(variables["inputs"][None], data) for prior in priors}

        descent = replace(self.joint.descent, snapshot_every=None)
        return solve(loss, variables, descent, project=self.joint.space.projection(data), report=report)[0]

    def _part(self, update: Update, rows: Tensor, client: ClientModel, number: int) -> Callable[[Params, int], Tensor]:
        """Return a function that computes the weighted distance for one update, a term of AGIC's equation 5."""
        gamma = self.gammas[min(update.epoch, len(self.gammas) - 1)]
        match, labels = self.joint.matching_term(update.observation, client), update.labels.to(rows.device)

        def part(variables: Params, step: int) -> Tensor:
            extra = {name: variables[f"{name}/{number}"] for name in client.extra}
            return gamma * match(variables["inputs"][rows], labels, extra, step)

        return part

    def _seen(self, observation: Observation, inputs: Tensor) -> Tensor:
        """Convert normalised inputs to samples in their original units."""
        data = self.joint.space.units(observation.data)
        seen = data.denormalise(inputs).detach().cpu()
        return seen.clamp(0, 1) if data.bounded else seen


def _mean(samples: list[Tensor], places: list[int]) -> Tensor:
    """Return the mean of one sample's reconstructions, over all epochs that contain the sample."""
    return torch.stack([samples[epoch][place] for epoch, place in enumerate(places) if place >= 0]).mean(0)


def _by_epoch(updates: list[Update]) -> list[list[Update]]:
    return [[update for update in updates if update.epoch == epoch] for epoch in range(1 + updates[-1].epoch)]


def _label_sets(group: list[Update], of_batch: bool) -> list[set[int]]:
    """Return a set of labels for each sample of an epoch.

    The set holds all labels of the sample's update if ``of_batch`` is true, and otherwise only the sample's label.
    """
    every = [(update.labels.tolist(), label) for update in group for label in update.labels.tolist()]
    return [set(batch) if of_batch else {label} for batch, label in every]


def _problems(updates: list[Update], places: Tensor) -> list[Problem]:
    """Divide the samples into groups that can be reconstructed separately.

    Samples of different groups have no update in common.
    """
    owner = {(epoch, place): sample for epoch, row in enumerate(places.tolist()) for sample, place in enumerate(row)}
    samples_of: list[list[int]] = []
    passed = [0] * len(places)
    for update in updates:
        begin = passed[update.epoch]
        passed[update.epoch] = end = begin + len(update.samples)
        samples_of.append([owner[update.epoch, place] for place in range(begin, end)])
    groups: list[set[int]] = []
    for samples in map(set, samples_of):
        touching = [group for group in groups if group & samples]
        groups = [group for group in groups if not group & samples] + [samples.union(*touching)]
    problems = []
    for group in sorted(groups, key=min):
        rows = sorted(group)
        row_of = {sample: row for row, sample in enumerate(rows)}
        members = [
            (update, [row_of[sample] for sample in samples])
            for update, samples in zip(updates, samples_of, strict=True)
            if samples[0] in group
        ]
        problems.append(Problem(rows, members))
    return problems
