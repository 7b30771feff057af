"""Benchmark rows that reconstruct a client from its updates in some epochs (AGIC by Xu et al., tables III and VI)."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from leakgauge import attacks
from leakgauge.core.progress import Report
from leakgauge.evaluation import score
from leakgauge.reproduction.kinds.base import ONE_MESSAGE, Job, Kind, Outcome, check_client, measures_of
from leakgauge.reproduction.updates import updates_of


def reconstruct_epochs(job: Job, report: Report) -> Outcome:
    """Reconstruct one client's samples from the updates of some of its epochs, and score the reconstruction.

    The method's option ``epochs`` lists the numbers of these epochs, counted from 1.
    """
    client = updates_of(job.setting, job.index, job.seed)
    seed, options = job.seed + job.index, dict(job.method.options)
    seen = [client.epochs[number - 1] for number in options.pop("epochs")]
    if job.steps is not None:
        options |= {"steps": job.steps} | ({"first_steps": job.steps} if len(seen) > 1 else {})
    began = time.perf_counter()
    if len(seen) > 1:
        result: attacks.Reconstruction = attacks.agic_epochs(**options)(seen, seed=seed, progress=report)
    else:
        each = attacks.build(job.method.attack, **options).each(seen[0], seed=seed, progress=report)
        labels = torch.cat([part.labels for part in each if part.labels is not None])
        result = replace(each[0], samples=torch.cat([part.samples for part in each]), labels=labels)
    scored = score(result, client.truth, threshold=job.row.measuring.get("threshold"))
    return Outcome(measures_of(scored), options.get("steps", 0), time.perf_counter() - began)


EPOCHS = Kind(reconstruct_epochs, ONE_MESSAGE | {"updates"}, check=check_client)
