"""Forecasts of the run time of an inversion, and versions of the inversion with fewer or more steps."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakgauge.attacks.inversion.free_targets import Targets, free_targets
from leakgauge.attacks.inversion.label_counts import dummies_at_a_time, dummy_statistics
from leakgauge.attacks.inversion.labels import dummies_for
from leakgauge.attacks.inversion.last_layer import last_layer
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.probed_labels import gradients_of_classes, has_formula
from leakgauge.attacks.inversion.settings import Effort, WarmStart
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Plateau, Rule
from leakgauge.attacks.inversion.unknown_recipe import complete_recipe
from leakgauge.core.observation import Observation
from leakgauge.core.progress import silent
from leakgauge.core.seeding import generator, seeded

if TYPE_CHECKING:
    from leakgauge.attacks.inversion.attack import Inversion

#: A short evaluation of the loss is measured again until this many seconds have passed, at most four times.
ENOUGH = 0.5


def forecast(inversion: Inversion, observation: Observation) -> float:
    """Return the expected run time of an inversion on this machine in seconds, from a timed evaluation of the loss.

    All attempts are counted. If an attempt stops after ``patience`` steps without improvement, it is expected to take
    four times ``patience`` steps. The time to infer labels is that of a separate inversion, if there is one, and of the
    dummy inputs that pass through the model.

    Args:
        inversion: The inversion whose run time is estimated.
        observation: The client's message (gradient or weights), as the server sees it.
    """
    with seeded(0, "forecast"):
        observation = complete_recipe(observation, generator(0, "forecast"))
        targets: Targets | None = free_targets(observation, generator(0, "forecast"))
        for_labels = 0.0
        if targets is None:
            targets, for_labels = _any_labels(observation), _of_dummies(inversion, observation)
        return inversion.effort.attempts * (for_labels + _seconds(inversion, observation, targets))


def _seconds(inversion: Inversion, observation: Observation, targets: Targets) -> float:
    """Return the expected seconds of one attempt. The time to find its starting point and its labels is included."""
    descent, restarts = inversion.descent, inversion.effort.restarts
    evaluations = _expected_steps(descent.stop) * int(getattr(descent.optimiser, "inner", 1))
    seconds = restarts * evaluations * _evaluation(inversion, observation, targets)
    if isinstance(inversion.space.start, WarmStart):
        seconds += restarts * _seconds(inversion.space.start.inversion, observation, targets)
    for_labels = getattr(inversion.labels, "inversion", None)
    if for_labels is not None:
        seconds += _seconds(for_labels, observation, targets)
    return seconds


def _of_dummies(inversion: Inversion, observation: Observation) -> float:
    """Return the seconds in which dummy inputs pass through the model to infer labels, from a part of them."""
    dummies = dummies_for(inversion.labels, observation)
    if not dummies:
        return 0.0
    draw, began = generator(0, "dummies"), time.perf_counter()
    if not has_formula(observation):
        next(gradients_of_classes(observation, [0], draw))
        return (time.perf_counter() - began) * (observation.data.classes or 0)
    part = min(dummies, dummies_at_a_time(observation.data.shape))
    dummy_statistics(observation, observation.sent, last_layer(observation).layer, part, draw)
    places = 1 if observation.returned is None else 2
    return (time.perf_counter() - began) * places * dummies / part


def _expected_steps(rule: Rule) -> float:
    """Return the number of steps after which a stopping rule usually ends an attempt."""
    if isinstance(rule, AnyOf):
        return min(map(_expected_steps, rule.rules))
    if isinstance(rule, Plateau):
        return 4 * rule.patience
    return math.inf if rule.max_steps is None else rule.max_steps


def _evaluation(inversion: Inversion, observation: Observation, targets: Targets) -> float:
    """Return the seconds of one evaluation of the loss with its gradient.

    The plain optimisation is timed, because the choices that a subclass makes between its stages do not grow with the
    number of steps.
    """
    from leakgauge.attacks.inversion.attack import Inversion

    space = replace(inversion.space, start="normal")
    probe = replace(inversion, space=space, descent=Descent(Adam(), stop=MaxSteps(1)), effort=Effort())
    times: list[float] = []
    while len(times) < 2 or (len(times) < 4 and sum(times) < ENOUGH):  # the first evaluation in a process is slower
        began = time.perf_counter()
        Inversion.optimise(probe, observation, targets, 0, silent)
        times.append(time.perf_counter() - began)
    return min(times) / 2  # one step evaluates the loss before and after it


def _any_labels(observation: Observation) -> Tensor:
    """Return labels of the right shape and type. Their values do not affect the time of an evaluation."""
    if observation.labels is not None:
        return observation.labels
    samples = int(observation.training.need("samples"))
    kind = torch.long if observation.data.classes is not None else next(iter(observation.sent.values())).dtype
    return torch.zeros(samples, dtype=kind, device=observation.device)


def scaled(inversion: Inversion, factor: float) -> Inversion:
    """Return a copy of an inversion that takes more or fewer steps.

    A factor below 1 first reduces the number of attempts, and then the steps of each attempt.

    Args:
        inversion: The inversion to copy.
        factor: The factor by which the total number of steps is multiplied.
    """
    attempts = inversion.effort.attempts
    kept = max(1, int(attempts * min(1.0, factor)))
    factor *= attempts / kept if factor < 1 else 1.0
    space = inversion.space
    if isinstance(space.start, WarmStart):
        warm = replace(space.start, inversion=scaled(space.start.inversion, min(1.0, factor)))
        space = replace(space, start=warm)
    stop = _scaled_rule(inversion.descent.stop, factor)
    return replace(inversion, space=space).with_settings(retries=kept - 1, stop=stop)


def _scaled_rule(rule: Rule, factor: float) -> Rule:
    if isinstance(rule, MaxSteps):
        return MaxSteps(max(1, round(rule.steps * factor)))
    if isinstance(rule, AnyOf):
        return AnyOf(*(_scaled_rule(one, factor) for one in rule.rules))
    return rule
