"""Stopping rules, which watch the loss of each problem.

================  =====================================================================================
``MaxSteps``      stops after a number of steps
``Threshold``     stops when the loss falls below a value
``Plateau``       stops when the best loss has not improved for a number of steps (EPAFL, algorithm 2)
``AnyOf``         stops when any of several rules stops (EPAFL's hybrid is ``AnyOf(Threshold(...), Plateau(...))``)
================  =====================================================================================

A rule holds only settings. Its method ``begin`` returns a watcher, which checks the losses of one run and holds the
state of this run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from leakgauge.core.checks import finite, whole_number
from leakgauge.core.errors import InvalidInput

#: The kinds of ending. ``"guess"`` means that the message explained nothing, so the result is a blind guess.
#: ``"failed"`` means that the attack failed to explain the message, and returned a blind guess instead of its samples.
Kind = Literal["converged", "plateau", "finished", "diverged", "interrupted", "guess", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The way in which one problem ended.

    Args:
        kind: The kind of ending as a single word, such as ``"converged"``, for use in code.
        step: The last step.
        sentence: The description of the ending, as a phrase for people.
    """

    kind: Kind
    step: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Watcher(Protocol):
    """An object that checks the losses of one run, and decides which problems stop."""

    def check(self, step: int, losses: Tensor) -> list[Outcome | None]:
        """Return the outcome of each problem that stops after this step, and ``None`` for the others.

        Args:
            step: The index of the step, from 0.
            losses: The losses of the running problems.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only some of the problems, and drop the others.

        Args:
            rows: The rows of the problems to keep.
        """
        ...


class Rule(Protocol):
    """A rule that decides when the optimisation of a problem stops."""

    @property
    def max_steps(self) -> int | None:
        """The largest number of steps, or ``None`` if the rule sets no limit."""
        ...

    def begin(self, problems: int) -> Watcher:
        """Return an object that checks the losses of one run after each step.

        Args:
            problems: The number of independent problems in the run.
        """
        ...


@dataclass(frozen=True)
class MaxSteps:
    """The rule that stops every problem after a number of steps.

    Args:
        steps: The number of steps.
    """

    steps: int

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)

    @property
    def max_steps(self) -> int | None:
        """The largest number of steps."""
        return self.steps

    def begin(self, problems: int) -> Watcher:
        """Return an object that checks the losses of one run after each step.

        Args:
            problems: The number of independent problems in the run.
        """
        return _Stateless(self._outcome)

    def _outcome(self, step: int, loss: float) -> Outcome | None:
        if step + 1 < self.steps:
            return None
        return Outcome("finished", step, f"used all {self.steps:,} steps, with a last loss of {loss:.3g}")


@dataclass(frozen=True)
class Threshold:
    """The rule that stops a problem when its loss is low.

    Args:
        value: The loss below which a problem stops.
    """

    value: float

    def __post_init__(self) -> None:
        finite("threshold", self.value)

    @property
    def max_steps(self) -> int | None:
        """``None``, because the rule sets no limit."""
        return None

    def begin(self, problems: int) -> Watcher:
        """Return an object that checks the losses of one run after each step.

        Args:
            problems: The number of independent problems in the run.
        """
        return _Stateless(self._outcome)

    def _outcome(self, step: int, loss: float) -> Outcome | None:
        if not loss < self.value:
            return None
        return Outcome("converged", step, f"converged at step {step}, where the loss fell below {self.value:g}")


@dataclass(frozen=True)
class Plateau:
    """The rule that stops a problem when its loss no longer improves.

    Args:
        patience: The number of steps without improvement after which a problem stops.
        tolerance: The relative decrease of the best loss that a step must exceed to count as an improvement.
    """

    patience: int
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        whole_number("patience", self.patience)
        if not 0 <= self.tolerance < 1:
            raise InvalidInput(f"tolerance must lie in [0, 1), not {self.tolerance}")

    @property
    def max_steps(self) -> int | None:
        """``None``, because the rule sets no limit."""
        return None

    def begin(self, problems: int) -> Watcher:
        """Return an object that checks the losses of one run after each step.

        Args:
            problems: The number of independent problems in the run.
        """
        return _PlateauWatcher(self, problems)


@dataclass(frozen=True, init=False)
class AnyOf:
    """The rule that stops a problem as soon as any of several rules stops it.

    Args:
        rules: The rules to combine.
    """

    rules: tuple[Rule, ...]

    def __init__(self, *rules: Rule) -> None:
        if not rules:
            raise InvalidInput("AnyOf needs at least one rule")
        object.__setattr__(self, "rules", rules)

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self.rules))})"

    @property
    def max_steps(self) -> int | None:
        """The smallest limit of the rules, or ``None`` if no rule sets a limit."""
        limits = [rule.max_steps for rule in self.rules if rule.max_steps is not None]
        return min(limits, default=None)

    def begin(self, problems: int) -> Watcher:
        """Return an object that checks the losses of one run after each step.

        Args:
            problems: The number of independent problems in the run.
        """
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
        sentence = f"stopped on a plateau at step {step}, after {self.rule.patience} steps without improvement"
        outcome = Outcome("plateau", step, sentence)
        return [outcome if waited >= self.rule.patience else None for waited in self.waited.tolist()]

    def keep(self, rows: Tensor) -> None:
        self.best, self.waited = self.best[rows], self.waited[rows]


class _AnyWatcher:
    def __init__(self, watchers: list[Watcher]) -> None:
        self.watchers = watchers

    def check(self, step: int, losses: Tensor) -> list[Outcome | None]:
        outcomes = [watcher.check(step, losses) for watcher in self.watchers]
        return [next((outcome for outcome in column if outcome), None) for column in zip(*outcomes, strict=True)]

    def keep(self, rows: Tensor) -> None:
        for watcher in self.watchers:
            watcher.keep(rows)
