"""Several attempts and restarts of one inversion, of which the best is returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from leakgauge.attacks.inversion.free_targets import Targets
from leakgauge.attacks.inversion.solve import Solution
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive

#: A solution, the number of copies of the samples in it, and the targets that were used.
Attempt = tuple[Solution, int, Targets]


def attempt_seed(seed: int, attempt: int) -> int:
    """Return the seed of one of several attempts. The first attempt has the seed of the attack."""
    return seed if attempt == 0 else derive(seed, "attempt", attempt)


def better_of(before: Attempt | None, now: Attempt) -> Attempt:
    """Return the attempt with the lower loss, marked as interrupted if the new attempt was interrupted.

    Args:
        before: The best attempt so far.
        now: The new attempt.
    """
    if before is None or now[0].loss < before[0].loss:
        return now
    if now[0].outcome.kind == "interrupted":
        return replace(before[0], outcome=now[0].outcome), before[1], before[2]
    return before


def best_of(results: list[tuple[Solution, int]]) -> tuple[Solution, int]:
    """Return the result with the lowest loss, marked as interrupted if any result was interrupted."""
    best, copies = min(results, key=lambda result: result[0].loss)
    interrupted = [solution.outcome for solution, _ in results if solution.outcome.kind == "interrupted"]
    return replace(best, outcome=interrupted[0]) if interrupted else best, copies


def not_worse(solution: Solution, start: Params, terms: Callable[[Params, int], Params]) -> Solution:
    """Return the solution, or the starting point (without noise) if the starting point has a lower loss.

    The starting point is the result of another inversion, which took less time.

    Some losses weight their terms differently at each step. Both losses are therefore computed with the weights of the
    last step.

    Args:
        solution: The result of the optimisation.
        start: The samples from the other inversion, without noise, and its targets if they are optimised.
        terms: The function that computes the terms of the loss.
    """
    variables, last = solution.variables | start, max(0, len(solution.trace.losses) - 1)
    with torch.enable_grad():  # some models of the client differentiate
        loss = float(sum(value.detach() for value in terms(variables, last).values()))
    if not loss < solution.loss:
        return solution
    sentence = f"{solution.outcome}, and the warm start, whose loss is lower, is returned"
    return replace(solution, variables=variables, loss=loss, outcome=replace(solution.outcome, sentence=sentence))


def counted_from(report: Report, before: int, total: int) -> Report:
    """Return a progress function that adds the number of earlier steps to every reported step.

    Args:
        report: The progress function of the whole attack.
        before: The number of earlier steps.
        total: The number of steps of the whole attack.
    """
    return lambda step, _, loss: report(before + step, total, loss)
