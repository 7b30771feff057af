"""Benchmark rows that compare rules for stopping an attack (EPAFL by Tabassum et al., tables 1 to 4).

The attack runs once to the last step, and the run is recorded. The rule of each method is then applied to the recorded
run. This shows the step at which the rule would have stopped, and the iterate that the attack would have returned. All
rules are applied to the same attacks, so a table needs only one run. The time of a rule is the number of evaluations
until the rule stops the attack, times the mean time of an evaluation in the recorded run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from leakgauge.attacks import Inversion, Reconstruction
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.core.container import output_folder
from leakgauge.core.errors import InvalidInput
from leakgauge.core.own_files import write_own
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.reports import iterates_of, loss_curves, progress_strip, to_png
from leakgauge.reproduction.kinds.base import ONE_MESSAGE, Job, Kind, Outcome
from leakgauge.reproduction.kinds.together import (
    attack_all,
    attack_of,
    chance_levels,
    check_together,
    clients_together,
    measure_all,
    trace_of,
    values_of,
)

#: The groups of clients that are drawn, and what is drawn of each group.
GROUPS, ENDINGS = ("recovered", "failed"), ("progress", "losses")


def apply_rule(job: Job, report: Report) -> Outcome:
    """Apply the stopping rule of a method to the recorded attack on each client, and measure the results.

    If the job has a folder for pictures, the attacks are drawn there.
    """
    attack = attack_of(job.method, job.steps)
    if not isinstance(attack, Inversion):
        raise InvalidInput(f"A row about stopping needs an inversion, not {job.method.attack!r}.")
    recorder = attack.with_settings(stop=MaxSteps(attack.stop.max_steps or 1), snapshot_every=1)
    recorded, truths, seconds = _recorded(job, recorder, report)
    stopped = [stopped_by(attack, result, truth) for result, truth in zip(recorded, truths, strict=True)]
    if job.pictures is not None:
        draw(job.pictures, _name(job), recorded, stopped, truths)
    spent = seconds / _evaluations(recorded) * _evaluations(stopped)
    return measure_all(stopped, truths, spent, chance_levels(job.setting, job.clients, job.seed))


def _name(job: Job) -> str:
    """Return the first part of the names of a job's pictures."""
    return f"{job.setting.data_name}-{job.method.name}"


def _drawn(job: Job) -> Iterator[Path]:
    if job.pictures is not None:
        yield from (job.pictures / f"{_name(job)}-{group}-{ending}.png" for group in GROUPS for ending in ENDINGS)


def _evaluations(results: Sequence[Reconstruction]) -> int:
    return sum(int(trace_of(result).evaluations[-1]) for result in results)


#: The two latest recorded runs. All rules of a table use them. There is one run for each dataset. Runs are large.
_LATEST: dict[tuple[Any, ...], tuple[list[Reconstruction], list[Truth], float]] = {}


def _recorded(job: Job, recorder: Inversion, report: Report) -> tuple[list[Reconstruction], list[Truth], float]:
    """Attack all clients to the last step. Return the recorded attacks, the true samples and the CPU seconds."""
    key = (job.setting, repr(recorder), job.clients, job.seed)
    if key not in _LATEST:
        while len(_LATEST) > 1:
            del _LATEST[next(iter(_LATEST))]
        observations, truths = clients_together(job.setting, job.clients, job.seed)
        results, seconds = attack_all(recorder, observations, job.seed, report)
        _LATEST[key] = results, truths, seconds
    return _LATEST[key]


def stopped_by(attack: Inversion, recorded: Reconstruction, truth: Truth) -> Reconstruction:
    """Return the result that an attack would have had if its stopping rule had been applied to the recorded run.

    The result is the iterate with the lowest loss up to the step at which the rule stops the run.

    Args:
        attack: The attack with its stopping rule.
        recorded: The recorded run to the last step.
        truth: The client's samples. Their data specification is used to convert the iterate to pixels.
    """
    trace = trace_of(recorded)
    watcher = attack.stop.begin(1)
    for step, loss in enumerate(trace.losses):
        (outcome,) = watcher.check(step, loss.reshape(1))
        if outcome is not None:
            break
    else:
        step, outcome = len(trace.losses) - 1, recorded.outcome
    losses = trace.losses[: step + 2].nan_to_num(math.inf)
    best = int(losses.argmin())
    samples = truth.data.denormalise(trace.snapshots[best][1]["inputs"])
    return replace(
        recorded,
        samples=samples.clamp(0, 1) if truth.data.bounded else samples,
        outcome=outcome,
        loss=float(losses[best]),
        trace=Trace(trace.losses[: step + 1], {}, evaluations=trace.evaluations[: step + 1]),
    )


def draw(
    folder: Path,
    name: str,
    recorded: Sequence[Reconstruction],
    stopped: Sequence[Reconstruction],
    truths: Sequence[Truth],
) -> None:
    """Draw figures like those of EPAFL.

    The figures show the iterates of successful attacks (figures 1 and 5), the iterates of failed attacks (figure 4),
    and the losses of both (figure 2).

    Args:
        folder: The folder for the pictures.
        name: The first part of the names of the pictures.
        recorded: The recorded runs to the last step.
        stopped: The same runs, stopped by the rule.
        truths: The clients' samples.
    """
    values = values_of(torch.cat([result.samples for result in stopped]), torch.cat([truth.inputs for truth in truths]))
    recovered = values["asr"] > 0
    groups = {group: chosen.nonzero().flatten() for group, chosen in zip(GROUPS, (recovered, ~recovered), strict=True)}
    for group, clients in groups.items():
        rows = {f"client {row}": row for row in clients[:4].tolist()}
        if not rows:
            continue
        ends = {title: stopped[row].outcome.step for title, row in rows.items()}
        iterates = {title: iterates_of(recorded[row], truths[row].data) for title, row in rows.items()}
        courses = {title: [pair for pair in pairs if pair[0] <= ends[title] + 1] for title, pairs in iterates.items()}
        strip = progress_strip(courses, {title: truths[row].inputs[0] for title, row in rows.items()})
        curves = loss_curves({title: trace_of(recorded[row]).losses for title, row in rows.items()}, ends, title=group)
        for ending, image in zip(ENDINGS, (strip, curves), strict=True):
            write_own(output_folder(folder) / f"{name}-{group}-{ending}.png", to_png(image))


STOPPING = Kind(apply_rule, ONE_MESSAGE, together=True, check=check_together, drawn=_drawn)
