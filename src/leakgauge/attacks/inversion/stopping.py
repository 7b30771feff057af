"""When to stop: rules that look at the attacker's own loss, each problem for itself.

================  =====================================================================================
``MaxSteps``      after a number of steps
``Threshold``     the loss fell below a value
``Plateau``       the best loss did not improve for ``patience`` steps (EPAFL, algorithm 2)
``AnyOf``         whichever comes first (EPAFL's hybrid is ``AnyOf(Threshold(...), Plateau(...))``)
================  =====================================================================================

A rule is a frozen description; :meth:`begin` gives the watcher that keeps its state for one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from leakgauge.core.checks import finite, whole_number
from leakgauge.core.errors import InvalidInput

Kind = Literal["converged", "plateau", "finished", "diverged", "interrupted"]


@dataclass(frozen=True)
class Outcome:
    """How one problem ended, as a word for programs and a sentence for people."""

    kind: Kind
    step: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Watcher(Protocol):
    """The state of a rule during one run, over the problems still running."""

    def check(self, step: int, losses: Tensor) -> list[Outcome | None]:
        """The outcome of each problem that is to stop after this step."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with only these of the problems."""
        ...


class Rule(Protocol):
    """When to stop."""

    @property
    def max_steps(self) -> int | None:
        """The most steps this rule allows; ``None`` if it sets no limit."""
        ...

    def begin(self, problems: int) -> Watcher:
        """Start watching."""
        ...


@dataclass(frozen=True)
class MaxSteps:
    """Stop after ``steps`` steps."""

    steps: int

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)

    @property
    def max_steps(self) -> int | None:
        """The limit."""
        return self.steps

    def begin(self, problems: int) -> Watcher:
        """Start watching."""
        return _Stateless(self._outcome)

    def _outcome(self, step: int, loss: float) -> Outcome | None:
        if step + 1 < self.steps:
            return None
        return Outcome("finished", step, f"used all {self.steps:,} steps; the last loss was {loss:.3g}")


@dataclass(frozen=True)
class Threshold:
    """Stop when the loss falls below ``value``."""

    value: float

    def __post_init__(self) -> None:
        finite("threshold", self.value)

    @property
    def max_steps(self) -> int | None:
        """No limit."""
        return None

    def begin(self, problems: int) -> Watcher:
        """Start watching."""
        return _Stateless(self._outcome)

    def _outcome(self, step: int, loss: float) -> Outcome | None:
        if not loss < self.value:
            return None
        return Outcome("converged", step, f"converged: the loss fell below {self.value:g} at step {step}")


@dataclass(frozen=True)
class Plateau:
    """Stop when the best loss has not improved by more than ``tolerance`` (relative) for ``patience`` steps."""

    patience: int
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        whole_number("patience", self.patience)
        if not 0 <= self.tolerance < 1:
            raise InvalidInput(f"tolerance must lie in [0, 1), not {self.tolerance}")

    @property
    def max_steps(self) -> int | None:
        """No limit."""
        return None

    def begin(self, problems: int) -> Watcher:
        """Start watching."""
        return _PlateauWatcher(self, problems)


@dataclass(frozen=True, init=False)
class AnyOf:
    """Stop as soon as one of several rules says so."""

    rules: tuple[Rule, ...]

    def __init__(self, *rules: Rule) -> None:
        if not rules:
            raise InvalidInput("AnyOf needs at least one rule")
        object.__setattr__(self, "rules", rules)

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self.rules))})"

    @property
    def max_steps(self) -> int | None:
        """The tightest limit."""
        limits = [rule.max_steps for rule in self.rules if rule.max_steps is not None]
        return min(limits, default=None)

    def begin(self, problems: int) -> Watcher:
        """Start watching."""
        return _AnyWatcher([rule.begin(problems) for rule in self.rules])


class _Stateless:
    def __init__(self, outcome: _OutcomeOf) -> None:
        self.outcome = outcome

    def check(self, step: int, losses: Tensor) -> list[Outcome | None]:
        return [self.outcome(step, loss) for loss in losses.tolist()]

    def keep(self, rows: Tensor) -> None:
        pass


class _OutcomeOf(Protocol):
    def __call__(self, step: int, loss: float) -> Outcome | None: ...


class _PlateauWatcher:
    def __init__(self, rule: Plateau, problems: int) -> None:
        self.rule = rule
        self.best = torch.full((problems,), math.inf, dtype=torch.double)
        self.waited = torch.zeros(problems, dtype=torch.long)

    def check(self, step: int, losses: Tensor) -> list[Outcome | None]:
        values = losses.detach().double().cpu()
        improved = values < self.best - self.rule.tolerance * self.best.abs().nan_to_num(posinf=0.0)
        self.best = torch.where(improved, values, self.best)
        self.waited = torch.where(improved, 0, self.waited + 1)
        sentence = f"stopped on a plateau: the loss did not improve for {self.rule.patience} steps, at step {step}"
        outcome = Outcome("plateau", step, sentence)
        return [outcome if waited >= self.rule.patience else None for waited in self.waited.tolist()]

    def keep(self, rows: Tensor) -> None:
        self.best, self.waited = self.best[rows], self.waited[rows]


class _AnyWatcher:
    def __init__(self, watchers: list[Watcher]) -> None:
        self.watchers = watchers

    def check(self, step: int, losses: Tensor) -> list[Outcome | None]:
        answers = [watcher.check(step, losses) for watcher in self.watchers]
        return [next((answer for answer in column if answer), None) for column in zip(*answers, strict=True)]

    def keep(self, rows: Tensor) -> None:
        for watcher in self.watchers:
            watcher.keep(rows)
