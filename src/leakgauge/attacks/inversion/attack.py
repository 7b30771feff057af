"""Reconstruction by optimisation: dummy samples are moved until the update they would cause is the one seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.fragility import Caution
from leakgauge.attacks.inversion.labels import Labels, LastLayer, rows_of_first_epoch
from leakgauge.attacks.inversion.matching import average_epochs, match_epochs
from leakgauge.attacks.inversion.objectives import Cosine, Objective
from leakgauge.attacks.inversion.optimisers import Adam, Constant, Optimiser, Schedule
from leakgauge.attacks.inversion.priors import Prior
from leakgauge.attacks.inversion.soft_labels import is_soft
from leakgauge.attacks.inversion.solve import Project, Solution, solve
from leakgauge.attacks.inversion.stopping import MaxSteps, Rule
from leakgauge.attacks.inversion.unknown_recipe import complete_recipe
from leakgauge.attacks.inversion.update_models import ClientModel, FullSimulation, UpdateModel
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator

Blind = Literal["normal", "uniform", "zeros"]
#: ``match(inputs, labels, extra, step)``: the first term of the loss.
Match = Callable[[Tensor, Tensor, Params, int], Tensor]


@dataclass(frozen=True)
class Inversion(Attack):
    r"""Find the samples that minimise ``objective(update_model(samples), observed) + priors(samples)``.

    ``labels`` says where labels come from; ``start`` is N(0, 1) or zeros on the model's side of the boundary,
    uniform in what a person sees, or the result of another inversion (:class:`WarmStart`); ``box`` keeps pixels
    in [0, 1] after each step; ``restarts`` are independent problems of which the attacker's own loss picks the
    best; ``vectorise`` runs them as one. ``match_weight`` is the objective's factor from step to step, and
    ``per_batch`` divides it by the number of simulated batches (DLF). ``keep_last`` returns the last iterate
    instead of the best. ``rescale`` moves pixels that the model takes as they are in units of a quarter of their
    range, as if they were normalised, for settings that were found on normalised data.

    ``retries`` is how often a problem that did not converge is started again from another point: an attacker sees
    that an attack failed, for the loss stays high. With ``enough``, an attempt that ended at or below that loss has
    not failed, whatever ended it. The attempt with the lowest loss is kept. ``caution`` adds to the
    outcome where the attack is known to be fragile. :meth:`each` attacks many small clients as one.

    Where epochs have variables of their own, their reconstructions are matched and averaged. Where the observation
    grants the knowledge of the client's defences, the attack allows for them (:mod:`leakgauge.attacks.inversion.adaptive`).
    """

    objective: Objective = Cosine()  # noqa: RUF009 - frozen
    update_model: UpdateModel = FullSimulation()  # noqa: RUF009
    labels: Labels = LastLayer()  # noqa: RUF009
    priors: tuple[Prior, ...] = ()
    optimiser: Optimiser = Adam()  # noqa: RUF009
    schedule: Schedule = Constant()  # noqa: RUF009
    stop: Rule = MaxSteps(1000)  # noqa: RUF009
    start: Blind | WarmStart = "normal"
    match_weight: Schedule = Constant()  # noqa: RUF009
    per_batch: bool = False
    box: bool = True
    restarts: int = 1
    vectorise: bool = False
    keep_last: bool = False
    rescale: bool = False
    snapshot_every: int | None = None
    retries: int = 0
    enough: float | None = None
    caution: Caution | None = None

    def __post_init__(self) -> None:
        whole_number("restarts", self.restarts)
        whole_number("retries", self.retries, at_least=0)
        if self.enough is not None:
            positive("enough", self.enough)
        if self.snapshot_every is not None:
            whole_number("snapshot_every", self.snapshot_every)
        for name in ("box", "vectorise", "per_batch", "keep_last", "rescale"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not isinstance(self.start, WarmStart) and self.start not in get_args(Blind):
            raise InvalidInput(f"start must be 'normal', 'uniform', 'zeros' or a WarmStart, not {self.start!r}")

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples."""
        from leakgauge.attacks.inversion.adaptive import adapted

        observation = complete_recipe(observation, generator(seed, "recipe"))
        return adapted(self, observation)._run(observation, seed, report)

    def _run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        total = self.attempts * (self.stop.max_steps or 0) if self.retries else None
        best: Attempt | None = None
        for attempt in range(self.attempts):
            again = attempt_seed(seed, attempt)
            targets = self.labels(observation, generator(again, "labels")).to(observation.device)
            counted = report if total is None else _counted(report, attempt * total // self.attempts, total)
            solution, copies = self.optimise(observation, targets, again, counted)
            best = better_of(best, (solution, copies, targets))
            if self.is_over(solution):
                break
        assert best is not None
        return self.reconstruction(observation, *best)

    def run_each(
        self, observations: Sequence[Observation], seeds: Sequence[int], report: Report
    ) -> list[Reconstruction]:
        """Reconstruct the samples of several clients, as one run where they are alike and small."""
        from leakgauge.attacks.inversion.together import alike, invert_together

        completed = [
            complete_recipe(one, generator(seed, "recipe")) for one, seed in zip(observations, seeds, strict=True)
        ]
        if not alike(self, completed) or any(one.defences for one in completed):
            return super().run_each(observations, seeds, report)
        return invert_together(self, completed, seeds, report)

    @property
    def attempts(self) -> int:
        """How often a problem is started at most."""
        return 1 + self.retries

    def is_over(self, solution: Solution) -> bool:
        """Whether no other attempt is made after this one."""
        low = self.enough is not None and solution.loss <= self.enough
        return low or solution.outcome.kind in ("converged", "interrupted")

    def reconstruction(self, observation: Observation, best: Solution, copies: int, targets: Tensor) -> Reconstruction:
        """What a solution says about the client's samples."""
        data = self.units(observation.data)
        epochs = data.denormalise(best.variables["inputs"]).unflatten(0, (copies, -1))
        each = self._labels_of_epochs(targets, copies, epochs.shape[1])
        samples, matched = (
            (epochs[0], None) if copies == 1 else (average_epochs(epochs, each), match_epochs(epochs, each))
        )
        if data.bounded:
            samples = samples.clamp(0, 1)
            matched = None if matched is None else matched.clamp(0, 1)
        soft = best.variables.get("labels")
        labels = targets[: len(samples)] if soft is None else soft.argmax(-1)
        words = "" if self.caution is None else self.caution(observation)
        outcome = replace(best.outcome, sentence=f"{best.outcome}; {words}") if words else best.outcome
        return Reconstruction(samples, labels, outcome, best.loss, best.trace, epochs=matched)

    def terms(self, observation: Observation, client: ClientModel, targets: Tensor) -> Callable[[Params, int], Params]:
        """The loss of one client, term by term, as a function of the variables and the step."""
        data = self.units(observation.data)
        match = self.matching(observation, client)
        priors = [prior for prior in self.priors if prior.applies(data)]

        def terms(variables: Params, step: int) -> Params:
            inputs, extra = variables["inputs"], {name: variables[name] for name in client.extra}
            labels = variables["labels"].softmax(-1) if "labels" in variables else targets
            epochs = inputs.unflatten(0, (client.copies, -1))
            found = {"match": match(inputs, labels, extra, step)}
            return found | {prior.name: prior(epochs, data) for prior in priors}

        return terms

    def matching(
        self, observation: Observation, client: ClientModel
    ) -> Callable[[Tensor, Tensor, Params, int], Tensor]:
        """How far samples are from explaining one client's update."""
        data = self.units(observation.data)
        observed = observation.difference() if self.objective.scale_free else observation.summed_gradient()
        distance = self.objective.begin(observation.model)
        total = self.stop.max_steps
        share = 1 / client.batches if self.per_batch else 1.0

        def match(inputs: Tensor, labels: Tensor, extra: Params, step: int) -> Tensor:
            seen = inputs if data is observation.data else observation.data.normalise(data.denormalise(inputs))
            return self.match_weight(step, total) * share * distance(client(seen, labels, **extra), observed)

        return match

    def optimise(self, observation: Observation, targets: Tensor, seed: int, report: Report) -> tuple[Solution, int]:
        """The best solution by the attacker's own loss, and how many copies of the samples it holds."""
        if self.vectorise:
            _check_vectorisable(observation)
        data = self.units(observation.data)
        client = self.update_model.begin(observation, functional=self.vectorise)
        terms = self.terms(observation, client, targets)
        total = self.stop.max_steps

        def loss(variables: Params, _: Params, step: int) -> Params:
            return terms(variables, step)

        before = 0
        if isinstance(self.start, WarmStart):
            before = self.restarts * (self.start.inversion.stop.max_steps or 0)
            warm = self._warm(self.start, observation, targets, seed, report, before + (total or 0))
            if warm[-1][0].outcome.kind == "interrupted":
                return _best(warm)
            starts = [
                self.start.spread(
                    solution.variables["inputs"].unflatten(0, (found, -1))[0],
                    client.copies,
                    generator(seed, "noise", restart),
                    self._labels_of_epochs(targets, client.copies, int(observation.training.need("samples"))),
                )
                for restart, (solution, found) in enumerate(warm)
            ]
        else:
            starts = [
                self._blind(observation, client.copies, generator(seed, "start", i)) for i in range(self.restarts)
            ]
        extra = {name: torch.stack([value] * self.restarts) for name, value in client.extra.items()}
        if is_soft(targets, data):
            more = [self.labels(observation, generator(seed, "labels", i)).to(targets) for i in range(1, self.restarts)]
            extra["labels"] = torch.stack([targets, *more])
        solutions = solve(
            loss,
            {"inputs": torch.stack(starts), **extra},
            optimiser=self.optimiser,
            schedule=self.schedule,
            stop=self.stop,
            project=self.projection(data),
            vectorise=self.vectorise,
            keep_last=self.keep_last,
            snapshot_every=self.snapshot_every,
            report=_counted(report, before, before + (total or 0)),
        )
        return _best([(solution, client.copies) for solution in solutions])

    def _warm(
        self, start: WarmStart, observation: Observation, targets: Tensor, seed: int, report: Report, total: int
    ) -> list[tuple[Solution, int]]:
        """What the cheaper inversion gives for each restart, in this one's units; an interrupt ends the list."""
        data, units = self.units(observation.data), start.inversion.units(observation.data)
        results = []
        for restart in range(self.restarts):
            counted = _counted(report, restart * (start.inversion.stop.max_steps or 0), total)
            solution, found = start.inversion.optimise(observation, targets, derive(seed, "warm", restart), counted)
            if units != data:
                inputs = data.normalise(units.denormalise(solution.variables["inputs"]))
                solution = replace(solution, variables=solution.variables | {"inputs": inputs})
            results.append((solution, found))
            if solution.outcome.kind == "interrupted":
                break
        return results

    def _blind(self, observation: Observation, copies: int, draw: torch.Generator) -> Tensor:
        """A start that knows nothing."""
        data = self.units(observation.data)
        like = next(iter(observation.sent.values()))
        shape = (copies * int(observation.training.need("samples")), *data.shape)
        if self.start == "zeros":
            start = torch.zeros(shape)
        elif self.start == "uniform":
            start = data.normalise(torch.rand(shape, generator=draw))
        else:
            start = torch.randn(shape, generator=draw)
        return start.to(like.device, like.dtype)

    def projection(self, data: DataSpec) -> Project | None:
        """What keeps iterates where they may be, if anything does."""
        return _box(data) if self.box and data.bounded else None

    def _labels_of_epochs(self, targets: Tensor, copies: int, samples: int) -> Tensor | None:
        """The labels at each place of each epoch, (epochs, samples), where they are known and differ."""
        if copies == 1 or len(targets) != copies * samples or getattr(self.update_model, "new_orders", False):
            return None
        labels: Tensor = targets.unflatten(0, (copies, samples))
        return labels

    def units(self, data: DataSpec) -> DataSpec:
        """The units in which samples are moved: the model's, or those of normalised pixels."""
        if self.rescale and data.bounded and min(data.std) > 0.5:
            return replace(data, mean=(0.5,), std=(0.25,))
        return data


@dataclass(frozen=True)
class WarmStart:
    """Start from the result of another, cheaper inversion, copied to every epoch with noise on top.

    ``noise`` is the deviation in the units in which samples are moved: without it the epochs would stay alike.
    """

    inversion: Inversion
    noise: float = 0.3

    def spread(self, inputs: Tensor, copies: int, draw: torch.Generator, labels: Tensor | None = None) -> Tensor:
        """The starting inputs: ``copies`` times the samples, each with noise of its own where there are several.

        Where the ``labels`` of every epoch are known, (epochs, samples), a sample is copied to a place of its label
        in each.
        """
        if copies == 1:
            return inputs
        repeated = torch.cat([inputs] * copies) if labels is None else inputs[rows_of_first_epoch(labels).flatten()]
        return repeated + self.noise * torch.randn(repeated.shape, generator=draw).to(repeated)


def _best(results: list[tuple[Solution, int]]) -> tuple[Solution, int]:
    """The one with the lowest loss; if any was interrupted, all were, also when the best had ended before."""
    best, copies = min(results, key=lambda result: result[0].loss)
    interrupted = [solution.outcome for solution, _ in results if solution.outcome.kind == "interrupted"]
    return replace(best, outcome=interrupted[0]) if interrupted else best, copies


#: A solution, how many copies of the samples it holds, and the labels that were taken.
Attempt = tuple[Solution, int, Tensor]


def better_of(before: Attempt | None, now: Attempt) -> Attempt:
    """The attempt with the lower loss; if the last one was interrupted, so was the whole."""
    if before is None or now[0].loss < before[0].loss:
        return now
    if now[0].outcome.kind == "interrupted":
        return replace(before[0], outcome=now[0].outcome), before[1], before[2]
    return before


def attempt_seed(seed: int, attempt: int) -> int:
    """The seed of one of several attempts; the first has the attack's own."""
    return seed if attempt == 0 else derive(seed, "attempt", attempt)


def _counted(report: Report, before: int, total: int) -> Report:
    """A report that counts on from what was done before."""
    return lambda step, _, loss: report(before + step, total, loss)


def _check_vectorisable(observation: Observation) -> None:
    norms = [module for module in observation.model.modules() if isinstance(module, _NormBase)]
    if observation.training.mode == "train" and any(norm.track_running_stats for norm in norms):
        raise InvalidInput(
            "restarts cannot be vectorised over batch norm in train mode, whose statistics each would change; "
            "use vectorise=False"
        )


def _box(data: DataSpec) -> Project:
    """Keep pixels in [0, 1], seen from the model's side."""

    def clamp(variables: Params) -> None:
        inputs = variables["inputs"]
        low, high = (data.normalise(torch.full_like(inputs[:1, :1], value)) for value in (0.0, 1.0))
        torch.clamp(inputs, low, high, out=inputs)

    return clamp
