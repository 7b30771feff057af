"""Many clients as one run: each is a problem of :func:`leakgauge.attacks.inversion.solve.solve`, with its own weights.

What differs from client to client (the weights that were sent, what came back, labels) are the problems' constants;
what they share (the architecture, the recipe, the attack) is written once. ``torch.func.vmap`` does them all in one
pass, which pays for small models: there, the cost of a step lies in starting its operations.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.soft_labels import is_soft
from leakgauge.attacks.inversion.solve import Solution, solve
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.models import recipe_of

if TYPE_CHECKING:
    from leakgauge.attacks.inversion.attack import Inversion

#: Above this many parameters one pass over all clients saves nothing.
TOGETHER_BELOW = 200_000
#: How many clients share a pass; more would only need more memory.
AT_ONCE = 128

TREES = ("sent", "gradient", "returned", "buffers")


def alike(attack: Inversion, observations: Sequence[Observation]) -> bool:
    """Whether these clients can be attacked as one: the same small architecture, data, recipe and kind of message."""
    first = observations[0]
    if len(observations) == 1 or attack.restarts > 1 or not isinstance(attack.start, str):
        return False
    if sum(value.numel() for value in first.sent.values()) > TOGETHER_BELOW:
        return False
    norms = any(isinstance(module, _NormBase) for module in first.model.modules())
    if norms and first.training.mode == "train":
        return False
    return all(
        (one.data, one.training, one.kind, one.device, one.label_batches is None)
        == (first.data, first.training, first.kind, first.device, True)
        and _same_architecture(one, first)
        for one in observations
    )


def _same_architecture(one: Observation, other: Observation) -> bool:
    """Whether two models compute the same function of their weights: the same object, or made by the same recipe."""
    if one.model is other.model:
        return True
    recipes = [recipe_of(observation.model) for observation in (one, other)]
    plain = [recipe and (recipe.name, {**recipe.options, "seed": None}) for recipe in recipes]
    trained = [[value.requires_grad for value in observation.model.parameters()] for observation in (one, other)]
    return plain[0] is not None and plain[0] == plain[1] and trained[0] == trained[1]


def invert_together(
    attack: Inversion, observations: Sequence[Observation], seeds: Sequence[int], report: Report
) -> list[Reconstruction]:
    """Attack clients that are :func:`alike`; those that did not converge once more, as often as the attack says."""
    from leakgauge.attacks.inversion.attack import Attempt, attempt_seed, better_of

    best: dict[int, Attempt] = {}
    ended: set[int] = set()
    limit = attack.stop.max_steps or 0
    groups = [range(len(observations))[first : first + AT_ONCE] for first in range(0, len(observations), AT_ONCE)]
    total, done = len(groups) * attack.attempts * limit, 0
    for group in groups:
        for attempt in range(attack.attempts):
            rows = [row for row in group if row not in ended]
            if not rows:
                break
            chosen = [observations[row] for row in rows]
            counted = _counted(report, done + attempt * limit, total)
            found = _solve(attack, chosen, [attempt_seed(seeds[row], attempt) for row in rows], counted)
            for row, one in zip(rows, found, strict=True):
                best[row] = better_of(best.get(row), one)
                if attack.is_over(one[0]):
                    ended.add(row)
            if any(one[0].outcome.kind == "interrupted" for one in found):
                return [attack.reconstruction(observations[row], *best[row]) for row in sorted(best)]
        done += attack.attempts * limit
    return [attack.reconstruction(observations[row], *best[row]) for row in range(len(observations))]


def _solve(
    attack: Inversion, observations: Sequence[Observation], seeds: Sequence[int], report: Report
) -> list[tuple[Solution, int, Tensor]]:
    """One attempt on all of some clients: solutions, copies of the samples in each, and the labels taken."""
    first = observations[0]
    data = attack.units(first.data)
    client = attack.update_model.begin(first, functional=True)
    pairs = list(zip(observations, seeds, strict=True))
    targets = torch.stack([attack.labels(one, generator(seed, "labels")).to(one.device) for one, seed in pairs])
    starts = torch.stack([attack._blind(one, client.copies, generator(seed, "start", 0)) for one, seed in pairs])
    variables = {name: torch.stack([value] * len(pairs)) for name, value in client.extra.items()}
    constants = _constants(observations)
    if is_soft(targets, data):
        variables["labels"] = targets
    else:
        constants["targets"] = targets

    def loss(variables: Params, constants: Params, step: int) -> Params:
        one = _stand_in(first, constants)
        model = attack.update_model.begin(one, functional=True)
        return attack.terms(one, model, constants.get("targets", targets[0]))(variables, step)

    solutions = solve(
        loss,
        {"inputs": starts, **variables},
        optimiser=attack.optimiser,
        schedule=attack.schedule,
        stop=attack.stop,
        project=attack.projection(data),
        constants=constants,
        vectorise=True,
        keep_last=attack.keep_last,
        snapshot_every=attack.snapshot_every,
        report=report,
    )
    return [(solution, client.copies, labels) for solution, labels in zip(solutions, targets, strict=True)]


def _constants(observations: Sequence[Observation]) -> Params:
    """Everything that differs between clients, stacked: ``tree/parameter``."""
    stacked: Params = {}
    for tree in TREES:
        trees = [one.model_buffers() if tree == "buffers" else getattr(one, tree) for one in observations]
        if trees[0] is not None:
            stacked |= {f"{tree}/{name}": torch.stack([each[name] for each in trees]) for name in trees[0]}
    return stacked


def _stand_in(observation: Observation, constants: Params) -> Observation:
    """An observation with one client's tensors, which may be vmap's: not checked again, for those have no values."""
    one = copy.copy(observation)
    for tree in TREES:
        found = {name.partition("/")[2]: value for name, value in constants.items() if name.startswith(f"{tree}/")}
        if found:
            object.__setattr__(one, tree, found)
    return one


def _counted(report: Report, before: int, total: int) -> Report:
    return lambda step, _, loss: report(before + step, total, loss)
