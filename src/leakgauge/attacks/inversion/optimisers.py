"""Optimisers that solve many independent problems at once, and learning-rate schedules.

Variables are a dictionary ``{name: tensor}``. The first dimension of each tensor is the number of problems. Adam and
SGD come from torch. Both act on each element separately, so stacked problems do not influence each other. L-BFGS needs
a separate history for each problem. The module :mod:`leakgauge.attacks.inversion.lbfgs` holds L-BFGS.
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

#: A function ``evaluate(variables, rows)``, which returns the losses and gradients of the running problems in these
#: rows.
Evaluate = Callable[[Params, Tensor], tuple[Tensor, Params]]


class Run(Protocol):
    """The state of an optimiser while it solves a stack of independent problems."""

    @property
    def variables(self) -> Params:
        """The current values of the variables. A projection may change these tensors in place."""
        ...

    def step(self, evaluate: Evaluate, factor: float) -> Tensor:
        """Take one step, and return the losses *before* this step.

        Args:
            evaluate: The function that returns the losses and gradients of given problems at given variables.
            factor: The factor by which the learning rate is multiplied.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Continue only some of the independent problems, and drop the others.

        Args:
            rows: The rows of the problems to keep.
        """
        ...


class Optimiser(Protocol):
    """The settings of an optimiser, which can start any number of runs."""

    def begin(self, variables: Params) -> Run:
        """Return the state of a new optimisation run.

        Args:
            variables: The initial values of the variables. The given tensors are not changed.
        """
        ...


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2014).

    Args:
        lr: The learning rate.
        betas: The decay rates of the two moments.
        signed: Whether Adam uses only the sign of the gradient (Geiping et al. 2020).
        rates: The learning rates of single variables. Each entry is a pair of a name and a learning rate, as in
            ``(("position", 0.001),)``. All other variables use ``lr``.
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
        """Return the state of a new optimisation run.

        Args:
            variables: The initial values of the variables. The given tensors are not changed.
        """
        return _TorchRun(
            variables,
            lambda leaves: torch.optim.Adam(leaves, lr=self.lr, betas=self.betas),
            {name: dict(self.rates).get(name, self.lr) for name in variables},
            self.signed,
        )


@dataclass(frozen=True)
class SGD:
    """Gradient descent with optional momentum.

    Args:
        lr: The learning rate.
        momentum: The momentum factor. 0 means plain gradient descent.
    """

    lr: float = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        not_negative("momentum", self.momentum)

    def begin(self, variables: Params) -> Run:
        """Return the state of a new optimisation run.

        Args:
            variables: The initial values of the variables. The given tensors are not changed.
        """
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
    """Return the part of an optimiser's state that belongs to the given rows. Step counters belong to all rows."""
    return value[rows] if isinstance(value, Tensor) and value.shape == variable.shape else value


class Schedule(Protocol):
    """A factor that changes from step to step, such as the factor of a learning rate."""

    def __call__(self, step: int, total: int | None) -> float:
        """Return the factor at a step.

        Args:
            step: The index of the step, from 0.
            total: The total number of steps, or ``None`` if there is no limit.
        """
        ...


@dataclass(frozen=True)
class Constant:
    """The same factor at every step.

    Args:
        factor: The factor at every step.
    """

    factor: float = 1.0

    def __call__(self, step: int, total: int | None) -> float:
        """Return the factor, which is the same at every step."""
        return self.factor


@dataclass(frozen=True)
class Decay:
    """A smooth exponential decay (DLF uses a factor of 0.995 every 10 steps).

    Args:
        factor: The factor by which the value is multiplied over ``every`` steps.
        every: The number of steps over which the value changes by ``factor``.
    """

    factor: float
    every: int = 1

    def __call__(self, step: int, total: int | None) -> float:
        """Return the factor at a step.

        Args:
            step: The index of the step, from 0.
            total: The total number of steps, or ``None`` if there is no limit.
        """
        return float(self.factor ** (step / self.every))


@dataclass(frozen=True)
class Ramp:
    """A factor that changes by the same ratio at each step and then stays constant (DLF).

    Args:
        start: The factor at the first step.
        end: The factor after the change.
        share: The share of all steps during which the factor changes.
    """

    start: float
    end: float
    share: float = 0.5

    def __call__(self, step: int, total: int | None) -> float:
        """Return the factor at a step.

        Args:
            step: The index of the step, from 0.
            total: The total number of steps, or ``None`` if there is no limit.
        """
        done = 1.0 if not total or not self.share else min(1.0, step / (self.share * total))
        return float(self.start ** (1 - done) * self.end**done)


@dataclass(frozen=True)
class Drops:
    """A factor that starts at 1 and drops several times (Geiping et al. 2020).

    Args:
        at: The times of the drops, as shares of all steps.
        factor: The factor by which the value is multiplied at each drop.
    """

    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1

    def __call__(self, step: int, total: int | None) -> float:
        """Return the factor at a step.

        Args:
            step: The index of the step, from 0.
            total: The total number of steps, or ``None`` if there is no limit.
        """
        if total is None:
            return 1.0
        return math.prod(self.factor for share in self.at if step >= share * total)
