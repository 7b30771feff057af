"""Optimisers over many independent problems at once, and learning-rate schedules.

Variables are ``{name: tensor}`` whose first dimension counts the problems. Adam and SGD are torch's own: they
act on each element by itself, so stacked problems do not see each other. L-BFGS needs a history for each
problem and is in :mod:`leakgauge.attacks.inversion.lbfgs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from leakgauge.core.checks import not_negative, positive
from leakgauge.core.params import Params

#: Losses (one a problem) and gradients at some variables. ``rows`` says which of the running problems they are.
Evaluate = Callable[[Params, Tensor], tuple[Tensor, Params]]


class Run(Protocol):
    """An optimiser at work on some problems."""

    @property
    def variables(self) -> Params:
        """Where the problems stand; a projection may change the tensors in place."""
        ...

    def step(self, evaluate: Evaluate, factor: float) -> Tensor:
        """Take one step with the learning rate times ``factor``; return the losses *before* it."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with only these of the problems."""
        ...


class Optimiser(Protocol):
    """A frozen description of an optimiser."""

    def begin(self, variables: Params) -> Run:
        """Start from these variables (which are not changed)."""
        ...


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2014); ``signed`` feeds it the sign of the gradient (Geiping et al. 2020).

    ``rates`` are the learning rates of variables that have their own, by name: ``(("position", 0.001),)``.
    """

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    signed: bool = False
    rates: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        for name, rate in self.rates:
            positive(f"the learning rate of {name}", rate)

    def begin(self, variables: Params) -> Run:
        """Start from these variables."""
        return _TorchRun(
            variables,
            lambda leaves: torch.optim.Adam(leaves, lr=self.lr, betas=self.betas),
            {name: dict(self.rates).get(name, self.lr) for name in variables},
            self.signed,
        )


@dataclass(frozen=True)
class SGD:
    """Gradient descent with optional momentum."""

    lr: float = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        not_negative("momentum", self.momentum)

    def begin(self, variables: Params) -> Run:
        """Start from these variables."""
        return _TorchRun(
            variables,
            lambda leaves: torch.optim.SGD(leaves, lr=self.lr, momentum=self.momentum),
            dict.fromkeys(variables, self.lr),
            False,
        )


class _TorchRun:
    def __init__(
        self,
        variables: Params,
        make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        rates: dict[str, float],
        signed: bool,
    ) -> None:
        self.variables = {name: value.detach().clone() for name, value in variables.items()}
        self.make, self.rates, self.signed = make, rates, signed
        self.optimiser = make([{"params": [value]} for value in self.variables.values()])

    def step(self, evaluate: Evaluate, factor: float) -> Tensor:
        problems = len(next(iter(self.variables.values())))
        losses, gradients = evaluate(self.variables, torch.arange(problems))
        for name, value in self.variables.items():
            value.grad = gradients[name].sign() if self.signed else gradients[name]
        for group, rate in zip(self.optimiser.param_groups, self.rates.values(), strict=True):
            group["lr"] = rate * factor
        self.optimiser.step()
        return losses

    def keep(self, rows: Tensor) -> None:
        old = self.optimiser.state
        variables = {name: value.detach()[rows] for name, value in self.variables.items()}
        self.optimiser = self.make([{"params": [value]} for value in variables.values()])
        for before, after in zip(self.variables.values(), variables.values(), strict=True):
            self.optimiser.state[after] = {key: _rows_of(value, before, rows) for key, value in old[before].items()}
        self.variables = variables


def _rows_of(value: Any, variable: Tensor, rows: Tensor) -> Any:
    """The part of an optimiser's state that belongs to some problems; counters are common to all."""
    return value[rows] if isinstance(value, Tensor) and value.shape == variable.shape else value


class Schedule(Protocol):
    """The learning rate's factor at a step."""

    def __call__(self, step: int, total: int | None) -> float:
        """The factor at this step of ``total``."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same factor at every step."""

    factor: float = 1.0

    def __call__(self, step: int, total: int | None) -> float:
        """Always the factor."""
        return self.factor


@dataclass(frozen=True)
class Decay:
    """Multiply by ``factor`` every ``every`` steps, smoothly (DLF: 0.995 every 10)."""

    factor: float
    every: int = 1

    def __call__(self, step: int, total: int | None) -> float:
        """The factor at this step of ``total``."""
        return float(self.factor ** (step / self.every))


@dataclass(frozen=True)
class Ramp:
    """From ``start`` to ``end`` in equal ratios over the first ``share`` of the steps, then held (DLF)."""

    start: float
    end: float
    share: float = 0.5

    def __call__(self, step: int, total: int | None) -> float:
        """The factor at this step of ``total``."""
        done = 1.0 if not total or not self.share else min(1.0, step / (self.share * total))
        return float(self.start ** (1 - done) * self.end**done)


@dataclass(frozen=True)
class Drops:
    """Multiply by ``factor`` after each of these shares of the steps (Geiping et al. 2020: 3/8, 5/8, 7/8)."""

    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1

    def __call__(self, step: int, total: int | None) -> float:
        """The factor at this step of ``total``."""
        if total is None:
            return 1.0
        return math.prod(self.factor for share in self.at if step >= share * total)
