"""Attacks on many clients in one run, in which each client is a problem with its own weights.

The tensors that differ from client to client (the weights that were sent, the message, the labels) are constants of the
problems. The rest (the architecture, the training settings, the attack) is the same for all clients.
``torch.func.vmap`` evaluates all clients in one pass. This is faster for small models, because small models spend most
of the time on the overhead of starting operations.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _NormBase

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.attempts import Attempt, attempt_seed, better_of, counted_from
from leakgauge.attacks.inversion.free_targets import Targets, unknown_targets, values_of
from leakgauge.attacks.inversion.solve import Solution, solve
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.models import recipe_of

if TYPE_CHECKING:
    from leakgauge.attacks.inversion.attack import Inversion

#: The number of parameters above which one pass over all clients saves no time.
TOGETHER_BELOW = 200_000
#: The number of clients in one pass. More clients only need more memory.
AT_ONCE = 128

TREES = ("sent", "gradient", "returned", "buffers")


def alike(attack: Inversion, observations: Sequence[Observation]) -> bool:
    """Return whether clients can be attacked in one run.

    The clients must have the same small architecture, the same kind of data, the same training settings and the same
    kind of message. The attack must not start from another inversion, and must use no restarts and no random orders of
    the samples.

    Args:
        attack: The attack that is to run on all clients.
        observations: One message for each client, as the server sees it.
    """
    first = observations[0]
    if len(observations) == 1 or attack.effort.restarts > 1 or not isinstance(attack.space.start, str):
        return False
    if first.kind == "weights" and getattr(attack.matching.update_model, "new_orders", False):
        return False  # each client needs its own orders, which are drawn once
    if sum(value.numel() for value in first.sent.values()) > TOGETHER_BELOW or unknown_targets(first):
        return False  # the centre and the scale of unknown targets differ between clients
    norms = any(isinstance(module, _NormBase) for module in first.model.modules())
    if norms and first.training.mode == "train":
        return False
    return all(
        (other.data, other.training, other.kind, other.device, other.label_batches is None)
        == (first.data, first.training, first.kind, first.device, True)
        and _same_architecture(other, first)
        for other in observations
    )


def _same_architecture(one: Observation, other: Observation) -> bool:
    """Return whether two observations have the same model object, or models built with the same name and options."""
    if one.model is other.model:
        return True
    recipes = [recipe_of(observation.model) for observation in (one, other)]
    plain = [recipe and (recipe.name, {**recipe.options, "seed": None}) for recipe in recipes]
    trained = [[value.requires_grad for value in observation.model.parameters()] for observation in (one, other)]
    return plain[0] is not None and plain[0] == plain[1] and trained[0] == trained[1]


def invert_together(
    attack: Inversion, observations: Sequence[Observation], seeds: Sequence[int], report: Report
) -> list[Reconstruction]:
    """Attack several clients in one run, and retry the clients for which the attack did not converge.

    The clients must fulfil the conditions of :func:`alike`.

    Args:
        attack: The attack to run on all clients.
        observations: One message for each client, with all training settings known or estimated.
        seeds: One seed for each client.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    best: dict[int, Attempt] = {}
    ended: set[int] = set()
    limit, attempts = attack.descent.steps, attack.effort.attempts
    groups = [range(len(observations))[first : first + AT_ONCE] for first in range(0, len(observations), AT_ONCE)]
    total, done = len(groups) * attempts * limit, 0
    for group in groups:
        for attempt in range(attempts):
            rows = [row for row in group if row not in ended]
            if not rows:
                break
            chosen = [observations[row] for row in rows]
            counted = counted_from(report, done + attempt * limit, total)
            results = _solve(attack, chosen, [attempt_seed(seeds[row], attempt) for row in rows], counted)
            for row, result in zip(rows, results, strict=True):
                best[row] = better_of(best.get(row), result)
                if attack.is_over(result[0]):
                    ended.add(row)
            if any(result[0].outcome.kind == "interrupted" for result in results):
                return [attack.reconstruction(observations[row], *best[row]) for row in sorted(best)]
        done += attempts * limit
    return [attack.reconstruction(observations[row], *best[row]) for row in range(len(observations))]


def _solve(
    attack: Inversion, observations: Sequence[Observation], seeds: Sequence[int], report: Report
) -> list[tuple[Solution, int, Targets]]:
    """Attack each client once, all in one vectorised run.

    The result holds for each client the solution, the number of copies of each sample in the solution, and the labels.
    """
    first = observations[0]
    data = attack.space.units(first.data)
    pairs = list(zip(observations, seeds, strict=True))
    each = [attack.targets(one, generator(seed, "labels")) for one, seed in pairs]
    targets = torch.stack([values_of(one) for one in each])
    client = attack.client(first, each[0], functional=True)
    starts = torch.stack([attack._blind(one, client.copies, generator(seed, "start", 0)) for one, seed in pairs])
    variables = {name: torch.stack([value] * len(pairs)) for name, value in client.extra.items()}
    constants = _constants(observations)
    if "labels" in variables:
        variables["labels"] = targets
    else:
        constants["targets"] = targets

    def loss(variables: Params, constants: Params, step: int) -> Params:
        observation = _with_tensors(first, constants)
        given = constants.get("targets", each[0])
        model = attack.client(observation, given, functional=True)
        return attack.terms(observation, model, given)(variables, step)

    solutions = solve(
        loss,
        {"inputs": starts, **variables},
        attack.descent,
        project=attack.space.projection(data),
        constants=constants,
        vectorise=True,
        report=report,
    )
    return [(solution, client.copies, labels) for solution, labels in zip(solutions, each, strict=True)]


def _constants(observations: Sequence[Observation]) -> Params:
    """Stack the tensors that differ between clients. Keys are ``field/parameter``, such as ``sent/conv1.weight``."""
    stacked: Params = {}
    for tree in TREES:
        trees = [one.model_buffers() if tree == "buffers" else getattr(one, tree) for one in observations]
        if trees[0] is not None:
            stacked |= {f"{tree}/{name}": torch.stack([each[name] for each in trees]) for name in trees[0]}
    return stacked


def _with_tensors(observation: Observation, constants: Params) -> Observation:
    """Return a copy of an observation with the tensors of one client.

    Within ``vmap`` the tensors have no readable values, so the copy is not checked again.
    """
    replaced = copy.copy(observation)
    for tree in TREES:
        tensors = {name.partition("/")[2]: value for name, value in constants.items() if name.startswith(f"{tree}/")}
        if tensors:
            object.__setattr__(replaced, tree, tensors)
    return replaced
