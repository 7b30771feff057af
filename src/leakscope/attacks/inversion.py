"""Reconstruction by optimisation: dummy samples are moved until the update they would cause is the one seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from leakscope.attacks.base import Attack, Reconstruction
from leakscope.errors import InvalidInput
from leakscope.inversion.checks import whole
from leakscope.inversion.labels import Labels, LastLayer
from leakscope.inversion.matching import average_epochs, match_epochs
from leakscope.inversion.objectives import Cosine, Objective
from leakscope.inversion.optimisers import Adam, Constant, Optimiser, Schedule
from leakscope.inversion.priors import Prior
from leakscope.inversion.recipe import complete_recipe
from leakscope.inversion.solve import Project, Solution, solve
from leakscope.inversion.stopping import MaxSteps, Rule
from leakscope.inversion.update_models import FullSimulation, UpdateModel
from leakscope.observation import DataSpec, Observation
from leakscope.params import Params
from leakscope.progress import Report
from leakscope.seeding import derive, generator

Blind = Literal["normal", "uniform", "zeros"]


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

    Where epochs have variables of their own, their reconstructions are matched and averaged.
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

    def __post_init__(self) -> None:
        whole("restarts", self.restarts)
        if self.snapshot_every is not None:
            whole("snapshot_every", self.snapshot_every)
        for name in ("box", "vectorise", "per_batch", "keep_last", "rescale"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not isinstance(self.start, WarmStart) and self.start not in get_args(Blind):
            raise InvalidInput(f"start must be 'normal', 'uniform', 'zeros' or a WarmStart, not {self.start!r}")

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples."""
        observation = complete_recipe(observation, generator(seed, "recipe"))
        like = next(iter(observation.sent.values()))
        targets = self.labels(observation, generator(seed, "labels")).to(like.device)
        best, copies = self.optimise(observation, targets, seed, report)
        data = self._units(observation.data)
        epochs = data.denormalise(best.variables["inputs"]).unflatten(0, (copies, -1))
        samples, matched = (epochs[0], None) if copies == 1 else (average_epochs(epochs), match_epochs(epochs))
        if data.bounded:
            samples = samples.clamp(0, 1)
            matched = None if matched is None else matched.clamp(0, 1)
        labels = targets[: len(samples)]
        return Reconstruction(samples, labels, best.outcome, best.loss, best.trace, epochs=matched)

    def optimise(self, observation: Observation, targets: Tensor, seed: int, report: Report) -> tuple[Solution, int]:
        """The best solution by the attacker's own loss, and how many copies of the samples it holds."""
        if self.vectorise:
            _check_vectorisable(observation)
        data = self._units(observation.data)
        observed = observation.difference() if self.objective.scale_free else observation.summed_gradient()
        client = self.update_model.begin(observation, functional=self.vectorise)
        priors = [prior for prior in self.priors if prior.applies(data)]
        total = self.stop.max_steps
        share = 1 / client.batches if self.per_batch else 1.0

        def loss(variables: Params, _: Params, step: int) -> Params:
            inputs, extra = variables["inputs"], {name: variables[name] for name in client.extra}
            seen = inputs if data is observation.data else observation.data.normalise(data.denormalise(inputs))
            match = self.objective(client(seen, targets, **extra), observed)
            terms = {"match": self.match_weight(step, total) * share * match}
            epochs = inputs.unflatten(0, (client.copies, -1))
            return terms | {prior.name: prior(epochs, data) for prior in priors}

        before = 0
        if isinstance(self.start, WarmStart):
            before = self.restarts * (self.start.inversion.stop.max_steps or 0)
            warm = self._warm(self.start, observation, targets, seed, report, before + (total or 0))
            if warm[-1][0].outcome.kind == "interrupted":
                return warm[-1]
            starts = [
                self.start.spread(
                    solution.variables["inputs"].unflatten(0, (found, -1))[0],
                    client.copies,
                    generator(seed, "noise", restart),
                )
                for restart, (solution, found) in enumerate(warm)
            ]
        else:
            starts = [
                self._blind(observation, client.copies, generator(seed, "start", i)) for i in range(self.restarts)
            ]
        extra = {name: torch.stack([value] * self.restarts) for name, value in client.extra.items()}
        solutions = solve(
            loss,
            {"inputs": torch.stack(starts), **extra},
            optimiser=self.optimiser,
            schedule=self.schedule,
            stop=self.stop,
            project=_box(data) if self.box and data.bounded else None,
            vectorise=self.vectorise,
            keep_last=self.keep_last,
            snapshot_every=self.snapshot_every,
            report=_counted(report, before, before + (total or 0)),
        )
        return min(solutions, key=lambda solution: solution.loss), client.copies

    def _warm(
        self, start: WarmStart, observation: Observation, targets: Tensor, seed: int, report: Report, total: int
    ) -> list[tuple[Solution, int]]:
        """What the cheaper inversion gives for each restart, in this one's units; an interrupt ends the list."""
        data, units = self._units(observation.data), start.inversion._units(observation.data)
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
        data = self._units(observation.data)
        like = next(iter(observation.sent.values()))
        shape = (copies * int(observation.training.need("samples")), *data.shape)
        if self.start == "zeros":
            start = torch.zeros(shape)
        elif self.start == "uniform":
            start = data.normalise(torch.rand(shape, generator=draw))
        else:
            start = torch.randn(shape, generator=draw)
        return start.to(like.device, like.dtype)

    def _units(self, data: DataSpec) -> DataSpec:
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

    def spread(self, inputs: Tensor, copies: int, draw: torch.Generator) -> Tensor:
        """The starting inputs: ``copies`` times the samples, each with noise of its own."""
        repeated = torch.cat([inputs] * copies)
        return repeated + self.noise * torch.randn(repeated.shape, generator=draw).to(repeated)


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
