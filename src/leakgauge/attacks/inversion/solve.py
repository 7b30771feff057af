"""The optimisation loop of every inversion.

The optimiser, its schedule, the projection and the stopping rule are arguments. Many independent problems (restarts, or
several clients) run together. Each problem stops separately, and is not evaluated after it has stopped. The returned
iterate is the iterate with the lowest loss, because an attacker cannot compare iterates with the true samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.attacks.inversion.optimisers import Adam, Constant, Optimiser, Schedule
from leakgauge.attacks.inversion.stopping import MaxSteps, Outcome, Rule
from leakgauge.core.checks import boolean, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import Params
from leakgauge.core.progress import Report

#: ``loss(variables, constants, step) -> {term: scalar}`` of one problem. The sum of the terms is minimised.
Loss = Callable[[Params, Params, int], Params]
#: A function that moves the variables in place to the nearest allowed values.
Project = Callable[[Params], None]


@dataclass(frozen=True)
class Descent:
    """The settings of an optimisation, which are the optimiser, the stopping rule and the returned iterate.

    Args:
        optimiser: The optimiser with its settings, such as Adam.
        schedule: The factor by which the learning rate is multiplied at each step.
        stop: The stopping rule.
        keep_last: Whether the last finite iterate is returned instead of the iterate with the lowest loss. Use it for
            losses whose weights change from step to step.
        snapshot_every: The number of steps between two recorded iterates. By default, no iterates are recorded.
    """

    optimiser: Optimiser = Adam()  # noqa: RUF009 - frozen
    schedule: Schedule = Constant()  # noqa: RUF009
    stop: Rule = MaxSteps(1000)  # noqa: RUF009
    keep_last: bool = False
    snapshot_every: int | None = None

    def __post_init__(self) -> None:
        boolean("keep_last", self.keep_last)
        if self.snapshot_every is not None:
            whole_number("snapshot_every", self.snapshot_every)

    @property
    def steps(self) -> int:
        """The largest number of steps, or 0 if the stopping rule sets no limit."""
        return self.stop.max_steps or 0


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of one optimisation, such as the loss at each step.

    Args:
        losses: The loss at each step.
        terms: A dictionary from the name of each term of the loss to the values of this term at each step.
        snapshots: The recorded iterates, each with its step.
        seconds: The time from the start of the run to the end of this optimisation.
        evaluations: The number of evaluations of the loss up to the end of each step. This cost does not depend on the
            machine, nor on the number of optimisations that ran at once.
    """

    losses: Tensor
    terms: dict[str, Tensor]
    snapshots: list[tuple[int, Params]] = field(default_factory=list)
    seconds: float = 0.0
    evaluations: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of one optimisation.

    Args:
        variables: The returned iterate, which is the value of each variable at one step.
        loss: The loss of the returned iterate.
        best_step: The step of the returned iterate.
        outcome: The way in which the optimisation ended, such as converged or interrupted.
        trace: The record of the optimisation.
    """

    variables: Params
    loss: float
    best_step: int
    outcome: Outcome
    trace: Trace


def solve(
    loss: Loss,
    start: Params,
    descent: Descent,
    *,
    project: Project | None = None,
    constants: Params | None = None,
    vectorise: bool = False,
    report: Report | None = None,
) -> list[Solution]:
    """Minimise a loss for many independent problems, such as restarts or clients.

    A loss that is not finite ends its problem. An interrupt (Ctrl-C) ends all problems. The best iterate is returned in
    both cases.

    Args:
        loss: The function that computes the terms of one problem's loss.
        start: The initial values of the variables. The first dimension is the number of problems.
        descent: The optimiser, its schedule, the stopping rule and the choice of the returned iterate.
        project: A projection that is applied after each step.
        constants: Tensors that differ between problems and are not optimised, stacked like ``start``.
        vectorise: Whether all problems are evaluated in one ``torch.func.vmap``, which is faster for small models.
            Otherwise the problems are evaluated one after another, which needs less memory.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    problems, limit = _count(start, constants or {}), descent.stop.max_steps
    if limit is None:
        raise InvalidInput(
            f"{descent.stop!r} may never stop. Combine it with a limit: AnyOf({descent.stop!r}, MaxSteps(...))"
        )
    book = _Bookkeeping(loss, start, constants or {}, descent, vectorise, project is not None)
    run, watcher = descent.optimiser.begin(start), descent.stop.begin(problems)
    try:
        for step in range(limit):
            book.begin_step(step)
            losses = run.step(book.evaluate, descent.schedule(step, limit))
            if project is not None:
                project(run.variables)
            ended = book.end_step(losses, watcher.check(step, losses))
            book.evaluate_ended(run.variables, ended)
            if report is not None:
                report(step + 1, limit, min(book.best_losses))
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
        raise InvalidInput(
            "all variables and constants must stack the same number of problems, "
            f"and here their first dimensions are {sizes}"
        )
    return next(iter(sizes.values()))


class _Bookkeeping:
    """The records of one run, such as the problems that still run, their losses and their best iterates."""

    def __init__(
        self, loss: Loss, start: Params, constants: Params, descent: Descent, vectorise: bool, projected: bool
    ) -> None:
        self.loss, self.constants, self.projected = loss, constants, projected
        self.snapshot_every, self.keep_last = descent.snapshot_every, descent.keep_last
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
        """Return the losses and the gradients of some of the running problems at the given variables."""
        problems = self.running[rows]
        self.looks[problems] += 1
        constants = self.constants
        if len(rows) < len(self.running):  # constants may be large, so they are copied only if needed
            constants = {name: value[rows.to(value.device)] for name, value in constants.items()}

        def total(variables: Params, constants: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
            terms = self.loss(variables, constants, self.step)
            value = torch.stack(list(terms.values())).sum()
            return value, (value, terms)

        gradients, losses, terms = self.differentiate(total, variables, constants)
        # Within a step an optimiser may evaluate points that the projection forbids.
        if self.step_is_new or self.step_is_over or not self.projected:
            self._record_best(problems, variables, losses)
        if self.step_is_new:
            self._record_step(problems, variables, losses, terms)
        return losses, gradients

    def evaluate_ended(self, variables: Params, rows: set[int]) -> None:
        """Evaluate the last iterates of problems that have just ended, so that these iterates can be returned too."""
        ended = [row for row in sorted(rows) if math.isfinite(self.losses[int(self.running[row])][-1])]
        self.step_is_over = True
        if ended:
            self.evaluate({name: value[ended] for name, value in variables.items()}, torch.tensor(ended))

    def _record_best(self, problems: Tensor, variables: Params, losses: Tensor) -> None:
        for row, (problem, value) in enumerate(zip(problems.tolist(), losses.tolist(), strict=True)):
            if value < self.best_losses[problem] or (self.keep_last and math.isfinite(value)):
                self.best_losses[problem], self.best_steps[problem] = value, self.step
                for name, best in self.best.items():
                    best[problem] = variables[name][row]

    def _record_step(self, problems: Tensor, variables: Params, losses: Tensor, terms: Params) -> None:
        """Record the losses and terms of a step's first evaluation. At some steps, record the iterates too."""
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
        """Record the end of a step, and return the rows of the problems that end with this step."""
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
        word = "NaN" if math.isnan(value) else "infinite"
        result = (
            f"the best iterate before it (step {self.best_steps[problem]})"
            if math.isfinite(self.best_losses[problem])
            else "the start"
        )
        sentence = f"diverged at step {self.step}, where the loss became {word}, and {result} is returned"
        return Outcome("diverged", self.step, sentence)

    def interrupt(self) -> None:
        """End all problems that ran in this step, including those that would have ended with this step anyway."""
        sentence = f"interrupted at step {self.step}, and the best iterate so far is returned"
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
            slopes = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
        gradients.append(dict(zip(leaves, slopes, strict=True)))
        losses.append(value.detach())
        terms.append({name: part.detach() for name, part in parts.items()})

    def stack(trees: list[Params]) -> Params:
        return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}

    return stack(gradients), torch.stack(losses), stack(terms)
