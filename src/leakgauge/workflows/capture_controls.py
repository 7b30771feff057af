"""Positive controls for captures, which are simulated messages that are easier to attack than the captures.

A capture is a saved message of a real federation and cannot be changed. A message that is easier to attack can be
simulated with some of the client's own samples, the same model, the same training settings and no defence. An attack
that fails on such a message too is too weak to support the verdict "nothing above chance".
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic.named_words import named_by
from leakgauge.attacks.base import Attack
from leakgauge.attacks.requirements import MOST_SIMULATED
from leakgauge.core.container import Location
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.measure import Measure
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.data.dataset import Dataset
from leakgauge.evaluation import score
from leakgauge.evaluation.support import control_sizes
from leakgauge.evaluation.verdict import Finding, judge, over_clients
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.runtime import Task
from leakgauge.runtime.cache import run_cached
from leakgauge.runtime.values import value_digest
from leakgauge.workflows.captures import Captures
from leakgauge.workflows.result import Running

#: The number of captures whose positive controls are attacked.
CONTROL_CAPTURES = 2


def controls_of(
    truths: Mapping[Path, Truth],
    definitions: Mapping[Path, Any],
    folder: Location,
    common: Mapping[str, Any],
    running: Running,
    name: str,
) -> list[Finding]:
    """Run an attack on easier versions of the first captures (positive controls), and return the results.

    A control that cannot be simulated is left out, and so is a control on which the attack raises an error.

    Args:
        truths: A dictionary from the files of captures to the samples of their clients.
        definitions: A dictionary from the files to everything that the result of the attack depends on, for the keys of
            the cache.
        folder: The folder of the cache.
        common: The arguments of :func:`attack_easier` that all tasks share.
        running: The engine and the listener of the tasks.
        name: The name of the attack.
    """
    tasks, control_of, keys = [], {}, {}
    for file, truth in islice(truths.items(), CONTROL_CAPTURES):
        digest = value_digest(truth)
        for control, samples in control_sizes(len(truth)).items():
            arguments = {"file": file, "truth": truth, "samples": samples}
            task = Task(f"{name}, version: {control}, {file.stem}", attack_easier, arguments)
            tasks.append(task)
            control_of[task.name] = control
            keys[task.name] = {**definitions[file], "control": control, "truth": digest}
    groups: dict[str, list[dict[str, Measure]]] = {}
    options = {"engine": running.engine, "jobs": running.jobs, "watch": running.watch, "common": common}
    with contextlib.suppress(LeakgaugeError):
        for task, measures in run_cached(tasks, keys, folder, **options):
            if measures:
                groups.setdefault(control_of[task.name], []).append(measures)
    return [
        Finding(name, control, over_clients(scores), judge(scores, labels_granted=True))
        for control, scores in groups.items()
    ]


def attack_easier(
    captures: Captures,
    attack: Attack,
    file: Path,
    truth: Truth,
    samples: int,
    seed: int,
    report: Report,
    device: str | None = None,
) -> dict[str, Measure]:
    """Attack a simulated message of a client with fewer samples and no defence, and return the scores as measures.

    The simulated message is easier to attack than the captured message. The result is empty if the message cannot be
    simulated.

    Args:
        captures: The captures that the file belongs to.
        attack: The attack to run on the simulated message.
        file: The file of the captured message.
        truth: The client's own samples.
        samples: The number of samples behind the simulated message.
        seed: The seed of the attack.
        report: The function that is called after each step.
        device: The device of the attack.
    """
    easier = easier_message(captures.load(file, captures.architecture()), truth, samples)
    if easier is None:
        return {}
    message, own = easier
    result = attack(message, seed=seed, device=device, progress=report)
    scored = score(result, own, **named_by(message))
    return {metric: replace(measure, per_sample=None) for metric, measure in scored.metrics.items()}


def easier_message(observation: Observation, truth: Truth, samples: int) -> tuple[Observation, Truth] | None:
    """Simulate the message of a client that has only some of the samples and no defence.

    Args:
        observation: The captured message.
        truth: The client's own samples.
        samples: The number of samples of the simulated client.

    Returns:
        The simulated message and the samples behind it, or ``None`` if too few training settings are known to
        simulate a client.
    """
    data = Dataset(truth.inputs[:samples], truth.targets[:samples], truth.data, name=observation.client)
    recipe = replace(observation.training, samples=None)
    if -(-len(data) // (recipe.batch_size or len(data))) * (recipe.epochs or 1) > MOST_SIMULATED:
        return None
    make = fedsgd if observation.kind == "gradient" else fedavg
    try:
        message, own = make(_with_weights(observation), data, recipe=recipe, granted=["labels"])
    except LeakgaugeError:
        return None
    return message, replace(own, reference_inputs=truth.reference_inputs, reference_targets=truth.reference_targets)


def _with_weights(observation: Observation) -> nn.Module:
    """Return a copy of the model with the weights and statistics that the server sent."""
    model = copy.deepcopy(observation.model)
    values: dict[str, Tensor] = {**observation.sent, **(observation.buffers or {})}
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in values:
                tensor.copy_(values[name])
    return model
