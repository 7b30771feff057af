"""Benchmark rows that measure how well an attack recognises samples that occur in two epochs (AGIC, table V).

Each update is reconstructed separately. Then each reconstruction of the first epoch is paired with a reconstruction of
the second epoch. ``matching_rate`` is the share of pairs that show the same sample. A random pairing gets one pair
right on average, so the chance level of a method without labels is one pair. A method that uses labels pairs only
samples of the same label. Its chance level is one pair for each label.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from leakgauge import attacks
from leakgauge.attacks.inversion.joint import JointInversion, Update
from leakgauge.core.errors import InvalidInput
from leakgauge.core.progress import Report
from leakgauge.evaluation import pair
from leakgauge.reproduction.kinds.base import ONE_MESSAGE, Job, Kind, Outcome, check_client
from leakgauge.reproduction.metrics import single
from leakgauge.reproduction.updates import ClientUpdates, updates_of


def match_samples(job: Job, report: Report) -> Outcome:
    """Pair the reconstructions of one client in two epochs, and measure the share of correct pairs."""
    options = dict(job.method.options) | ({} if job.steps is None else {"first_steps": job.steps})
    joint = attacks.agic_epochs(**options)
    client = updates_of(job.setting, job.index, job.seed)
    updates, seconds = _separate_inversions(job, joint.first, report)
    places, _ = joint.match(updates)
    samples = [_identities(client, updates, epoch) for epoch in range(len(client.epochs))]
    correct = samples[1][places[1]] == samples[0][places[0]]
    certain = 1 if joint.label_filter == "none" else len(set(client.truth.targets.tolist()))
    rate = single("matching_rate", correct.double().mean().item(), chance=certain / len(client.truth))
    return Outcome({"matching_rate": rate}, joint.first.stop.max_steps or 0, seconds)


#: The latest reconstructions of single updates. All methods that pair the samples of one client use them.
_LATEST: dict[tuple[Any, ...], tuple[list[Update], float]] = {}


def _separate_inversions(job: Job, first: attacks.Inversion, report: Report) -> tuple[list[Update], float]:
    """Reconstruct each update separately. Return the reconstructions and the total time in seconds.

    If the user interrupts the run, ``KeyboardInterrupt`` is raised.
    """
    key = (job.setting, repr(first), job.index, job.seed)
    if key not in _LATEST:
        began = time.perf_counter()
        client = updates_of(job.setting, job.index, job.seed)
        seed = job.seed + job.index
        updates, outcome = JointInversion(first, first).alone(client.epochs, seed=seed, progress=report)
        if outcome.kind == "interrupted":
            raise KeyboardInterrupt
        _LATEST.clear()
        _LATEST[key] = updates, time.perf_counter() - began
    return _LATEST[key]


def _identities(client: ClientUpdates, updates: list[Update], epoch: int) -> Tensor:
    """Return, for each reconstruction in an epoch, the index of the true sample that the reconstruction shows.

    The reconstructions of an update are paired one-to-one with the true samples of the same update.
    """
    of_epoch = [update for update in updates if update.epoch == epoch]
    if len(of_epoch) != len(client.rows[epoch]):
        raise InvalidInput("A row about epochs needs as many reconstructions as updates.")
    identities = []
    for update, rows in zip(of_epoch, client.rows[epoch], strict=True):
        paired = pair(update.samples, client.truth.inputs[rows]).rows
        samples = torch.empty(len(rows), dtype=torch.long)
        samples[paired] = rows
        identities.append(samples)
    return torch.cat(identities)


MATCHING = Kind(match_samples, ONE_MESSAGE | {"updates"}, check=check_client)
