"""The one optimisation loop.

Everything that varies is an argument: the optimiser, its schedule, a projection, the stopping rule. Many
independent problems (restarts, or several clients) run as one; each stops for itself, and then costs nothing.
The iterate returned is the best *by the attacker's own loss*: nothing here can know the truth.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.attacks.inversion.optimisers import Constant, Optimiser, Schedule
from leakgauge.attacks.inversion.stopping import Outcome, Rule
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import Params
from leakgauge.core.progress import Report

#: ``loss(variables, constants, step) -> {term: scalar}`` of one problem; their sum is minimised.
Loss = Callable[[Params, Params, int], Params]
#: Moves the variables, in place, to the nearest allowed ones.
Project = Callable[[Params], None]


@dataclass(frozen=True, eq=False)
class Trace:
    """The course of one problem: the loss and its terms at each step, iterates kept on the way, seconds.

    ``evaluations`` counts, step by step, how often the loss had been looked at by the end of it: the cost that does not
    depend on the machine, nor on how many problems ran at once.
    """

    losses: Tensor
    terms: dict[str, Tensor]
    snapshots: list[tuple[int, Params]] = field(default_factory=list)
    seconds: float = 0.0
    evaluations: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))


@dataclass(frozen=True, eq=False)
class Solution:
    """What became of one problem."""

    variables: Params
    loss: float
    best_step: int
    outcome: Outcome
    trace: Trace


def solve(
    loss: Loss,
    start: Params,
    *,
    optimiser: Optimiser,
    stop: Rule,
    schedule: Schedule | None = None,
    project: Project | None = None,
    constants: Params | None = None,
    vectorise: bool = False,
    keep_last: bool = False,
    snapshot_every: int | None = None,
    report: Report | None = None,
) -> list[Solution]:
    """Minimise ``loss`` for each of the problems stacked in ``start`` (first dimension), independently.

    ``constants`` are stacked the same way and not optimised. ``vectorise`` evaluates all problems in one
    ``torch.func.vmap``, which pays for small models; otherwise one after another, which needs less memory.
    ``keep_last`` returns the last finite iterate instead of the best, for losses whose weights change on the way.
    A non-finite loss ends its problem, an interrupt (Ctrl-C) all of them; the best iterate is kept.
    """
    problems = _count(start, constants or {})
    if stop.max_steps is None:
        raise InvalidInput(f"{stop!r} may never stop; combine it: AnyOf({stop!r}, MaxSteps(...))")
    book = _Book(loss, start, constants or {}, vectorise, snapshot_every, project is not None, keep_last)
    run, watcher = optimiser.begin(start), stop.begin(problems)
    factor = schedule or Constant()
    try:
        for step in range(stop.max_steps):
            book.begin_step(step)
            losses = run.step(book.evaluate, factor(step, stop.max_steps))
            if project is not None:
                project(run.variables)
            ended = book.end_step(losses, watcher.check(step, losses))
            book.last_look(run.variables, ended)
            if report is not None:
                report(step + 1, stop.max_steps, min(book.best_losses))
            if len(ended) == len(losses):
                break
            if ended:
                rows = torch.tensor([row for row in range(len(losses)) if row not in ended])
                run.keep(rows)
                watcher.keep(rows)
                book.keep(rows)
    except KeyboardInterrupt:
        book.interrupt()
    return [book.solution(problem) for problem in range(problems)]


def _count(start: Params, constants: Params) -> int:
    sizes = {name: len(value) if value.dim() else 0 for name, value in (start | constants).items()}
    if not start or len(set(sizes.values())) != 1 or not next(iter(sizes.values())):
        raise InvalidInput(f"all variables and constants must stack the same number of problems; got {sizes}")
    return next(iter(sizes.values()))


class _Book:
    """The books of one run: which problems still run, their losses, and each one's best iterate."""

    def __init__(
        self,
        loss: Loss,
        start: Params,
        constants: Params,
        vectorise: bool,
        snapshot_every: int | None,
        projected: bool,
        keep_last: bool,
    ) -> None:
        self.loss, self.constants, self.snapshot_every = loss, constants, snapshot_every
        self.projected, self.keep_last = projected, keep_last
        self.differentiate = _all_at_once if vectorise else _one_by_one
        count = len(next(iter(start.values())))
        self.running = torch.arange(count)
        self.best = {name: value.detach().clone() for name, value in start.items()}
        self.best_losses = [math.inf] * count
        self.best_steps = [0] * count
        self.losses: list[list[float]] = [[] for _ in range(count)]
        self.terms: list[dict[str, list[float]]] = [{} for _ in range(count)]
        self.snapshots: list[list[tuple[int, Params]]] = [[] for _ in range(count)]
        self.outcomes: list[Outcome | None] = [None] * count
        self.seconds = [0.0] * count
        self.looks = torch.zeros(count, dtype=torch.long)
        self.evaluations: list[list[int]] = [[] for _ in range(count)]
        self.began = time.perf_counter()
        self.step, self.step_is_new, self.step_is_over = 0, True, False

    def begin_step(self, step: int) -> None:
        self.step, self.step_is_new, self.step_is_over = step, True, False

    def evaluate(self, variables: Params, rows: Tensor) -> tuple[Tensor, Params]:
        """Losses and gradients at ``variables``, which belong to these of the running problems."""
        problems = self.running[rows]
        self.looks[problems] += 1
        constants = self.constants
        if len(rows) < len(self.running):  # copies of what may be large: only where they differ
            constants = {name: value[rows.to(value.device)] for name, value in constants.items()}

        def total(variables: Params, constants: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
            terms = self.loss(variables, constants, self.step)
            value = torch.stack(list(terms.values())).sum()
            return value, (value, terms)

        gradients, losses, terms = self.differentiate(total, variables, constants)
        # Within a step an optimiser may look where the projection would not let it stay.
        if self.step_is_new or self.step_is_over or not self.projected:
            self._note_best(problems, variables, losses)
        if self.step_is_new:
            self._note(problems, variables, losses, terms)
        return losses, gradients

    def last_look(self, variables: Params, rows: set[int]) -> None:
        """Look at the last iterate of problems that have just ended: nothing else will."""
        ended = [row for row in sorted(rows) if math.isfinite(self.losses[int(self.running[row])][-1])]
        self.step_is_over = True
        if ended:
            self.evaluate({name: value[ended] for name, value in variables.items()}, torch.tensor(ended))

    def _note_best(self, problems: Tensor, variables: Params, losses: Tensor) -> None:
        for row, (problem, value) in enumerate(zip(problems.tolist(), losses.tolist(), strict=True)):
            if value < self.best_losses[problem] or (self.keep_last and math.isfinite(value)):
                self.best_losses[problem], self.best_steps[problem] = value, self.step
                for name, best in self.best.items():
                    best[problem] = variables[name][row]

    def _note(self, problems: Tensor, variables: Params, losses: Tensor, terms: Params) -> None:
        """Write down the step's first evaluation."""
        self.step_is_new = False
        columns = {name: values.tolist() for name, values in terms.items()}
        snapshot = self.snapshot_every is not None and self.step % self.snapshot_every == 0
        for row, (problem, value) in enumerate(zip(problems.tolist(), losses.tolist(), strict=True)):
            self.losses[problem].append(value)
            for name, values in columns.items():
                self.terms[problem].setdefault(name, []).append(values[row])
            if snapshot:
                iterate = {name: value[row].detach().clone() for name, value in variables.items()}
                self.snapshots[problem].append((self.step, iterate))

    def end_step(self, losses: Tensor, answers: list[Outcome | None]) -> set[int]:
        """Return the rows of the problems that end with this step."""
        ended = set()
        elapsed = time.perf_counter() - self.began
        for row, (problem, value) in enumerate(zip(self.running.tolist(), losses.tolist(), strict=True)):
            self.seconds[problem] = elapsed
            self.evaluations[problem].append(int(self.looks[problem]))
            outcome = answers[row] if math.isfinite(value) else self._diverged(problem, value)
            if outcome is not None:
                self.outcomes[problem] = outcome
                ended.add(row)
        return ended

    def _diverged(self, problem: int, value: float) -> Outcome:
        kept = (
            f"the best iterate before it (step {self.best_steps[problem]}) is returned"
            if math.isfinite(self.best_losses[problem])
            else "the start is returned, there was nothing better"
        )
        what = "NaN" if math.isnan(value) else "infinite"
        return Outcome("diverged", self.step, f"diverged: the loss became {what} at step {self.step}; {kept}")

    def interrupt(self) -> None:
        """End all problems that still ran in this step, also those that would have ended with it."""
        sentence = f"interrupted at step {self.step}; the best iterate so far is returned"
        for problem in self.running.tolist():
            self.outcomes[problem] = Outcome("interrupted", self.step, sentence)

    def keep(self, rows: Tensor) -> None:
        self.running = self.running[rows]
        self.constants = {name: value[rows.to(value.device)] for name, value in self.constants.items()}

    def solution(self, problem: int) -> Solution:
        outcome = self.outcomes[problem]
        assert outcome is not None
        trace = Trace(
            torch.tensor(self.losses[problem], dtype=torch.double),
            {name: torch.tensor(values, dtype=torch.double) for name, values in self.terms[problem].items()},
            self.snapshots[problem],
            self.seconds[problem],
            torch.tensor(self.evaluations[problem], dtype=torch.long),
        )
        variables = {name: value[problem] for name, value in self.best.items()}
        return Solution(variables, self.best_losses[problem], self.best_steps[problem], outcome, trace)


Total = Callable[[Params, Params], tuple[Tensor, tuple[Tensor, Params]]]


def _all_at_once(total: Total, variables: Params, constants: Params) -> tuple[Params, Tensor, Params]:
    differentiate = torch.func.vmap(torch.func.grad(total, has_aux=True), randomness="different")
    gradients, (losses, terms) = differentiate(variables, constants)
    return gradients, losses, terms


def _one_by_one(total: Total, variables: Params, constants: Params) -> tuple[Params, Tensor, Params]:
    gradients, losses, terms = [], [], []
    for row in range(len(next(iter(variables.values())))):
        leaves = {name: value[row].detach().requires_grad_() for name, value in variables.items()}
        with torch.enable_grad():
            value, (_, parts) = total(leaves, {name: constant[row] for name, constant in constants.items()})
            found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
        gradients.append(dict(zip(leaves, found, strict=True)))
        losses.append(value.detach())
        terms.append({name: part.detach() for name, part in parts.items()})

    def stack(trees: list[Params]) -> Params:
        return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}

    return stack(gradients), torch.stack(losses), stack(terms)
