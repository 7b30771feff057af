"""Reconstruction by optimisation: dummy samples are moved until the update they would cause is the one seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from leakscope.attacks.base import Attack, Reconstruction
from leakscope.errors import InvalidInput
from leakscope.inversion.checks import whole
from leakscope.inversion.labels import Labels, LastLayer
from leakscope.inversion.objectives import Cosine, Objective
from leakscope.inversion.optimisers import Adam, Constant, Optimiser, Schedule
from leakscope.inversion.priors import Prior
from leakscope.inversion.solve import Project, solve
from leakscope.inversion.stopping import MaxSteps, Rule
from leakscope.inversion.update_models import FullSimulation, UpdateModel
from leakscope.observation import DataSpec, Observation
from leakscope.params import Params, to
from leakscope.progress import Report
from leakscope.seeding import generator

Start = Literal["normal", "uniform", "zeros"]


@dataclass(frozen=True)
class Inversion(Attack):
    r"""Find the samples that minimise ``objective(update_model(samples), observed) + priors(samples)``.

    ``labels`` says where labels come from; ``start`` is N(0, 1) or zeros on the model's side of the boundary,
    or uniform in what a person sees; ``box`` keeps pixels in [0, 1] after each step; ``restarts`` are
    independent problems of which the attacker's own loss picks the best; ``vectorise`` runs them as one.
    """

    objective: Objective = Cosine()  # noqa: RUF009 - frozen
    update_model: UpdateModel = FullSimulation()  # noqa: RUF009
    labels: Labels = LastLayer()  # noqa: RUF009
    priors: tuple[Prior, ...] = ()
    optimiser: Optimiser = Adam()  # noqa: RUF009
    schedule: Schedule = Constant()  # noqa: RUF009
    stop: Rule = MaxSteps(1000)  # noqa: RUF009
    start: Start = "normal"
    box: bool = True
    restarts: int = 1
    vectorise: bool = False
    snapshot_every: int | None = None

    def __post_init__(self) -> None:
        whole("restarts", self.restarts)
        if self.snapshot_every is not None:
            whole("snapshot_every", self.snapshot_every)
        for name in ("box", "vectorise"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.start not in ("normal", "uniform", "zeros"):
            raise InvalidInput(f"start must be 'normal', 'uniform' or 'zeros', not {self.start!r}")

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples."""
        if self.vectorise:
            _check_vectorisable(observation)
        data, samples = observation.data, int(observation.training.need("samples"))
        like = next(iter(observation.sent.values()))
        targets = self.labels(observation, generator(seed, "labels")).to(like.device)
        observed = observation.difference() if self.objective.scale_free else observation.summed_gradient()
        predict = self.update_model.begin(observation, functional=self.vectorise)
        priors = [prior for prior in self.priors if prior.applies(data)]

        def loss(variables: Params, _: Params, step: int) -> Params:
            inputs = variables["inputs"]
            terms = {"match": self.objective(predict(inputs, targets), observed)}
            return terms | {prior.name: prior(inputs) for prior in priors}

        solutions = solve(
            loss,
            to({"inputs": self._start(data, samples, seed).to(like.dtype)}, like.device),
            optimiser=self.optimiser,
            schedule=self.schedule,
            stop=self.stop,
            project=_box(data) if self.box and data.bounded else None,
            vectorise=self.vectorise,
            snapshot_every=self.snapshot_every,
            report=report,
        )
        best = min(solutions, key=lambda solution: solution.loss)
        return Reconstruction(_as_seen(best.variables["inputs"], data), targets, best.outcome, best.loss, best.trace)

    def _start(self, data: DataSpec, samples: int, seed: int) -> Tensor:
        """One start a restart, the same whatever the number of restarts."""
        shape = (samples, *data.shape)
        if self.start == "zeros":
            return torch.zeros(self.restarts, *shape)
        generators = [generator(seed, "start", restart) for restart in range(self.restarts)]
        if self.start == "uniform":
            return torch.stack([data.normalise(torch.rand(shape, generator=each)) for each in generators])
        return torch.stack([torch.randn(shape, generator=each) for each in generators])


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


def _as_seen(inputs: Tensor, data: DataSpec) -> Tensor:
    samples = data.denormalise(inputs)
    return samples.clamp(0, 1) if data.bounded else samples
