"""Benchmark rows that count the wrongly estimated labels of a client (DLF by Dimitrov et al., table 2)."""

from __future__ import annotations

import time
from typing import Any

import torch

from leakgauge import attacks
from leakgauge.attacks.inversion.labels import Labels, LastLayer
from leakgauge.attacks.inversion.refined_labels import RefinedLabels
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.evaluation import label_error_chance, label_errors
from leakgauge.reproduction.clients import client_of
from leakgauge.reproduction.kinds.base import ONE_MESSAGE, Job, Kind, Outcome, check_client
from leakgauge.reproduction.metrics import single


def label_estimator(options: dict[str, Any]) -> Labels:
    """Return the function with which a method estimates a client's labels.

    Args:
        options: The options of :class:`~leakgauge.attacks.inversion.labels.LastLayer`. If there is a further option
            ``refine``, a first reconstruction with this number of steps corrects the estimate.
    """
    options = dict(options)
    refine = options.pop("refine", None)
    first = LastLayer(dummies=3000, **options)
    return first if refine is None else RefinedLabels(attacks.surrogate(steps=refine), first)


def estimate_labels(job: Job, report: Report) -> Outcome:
    """Estimate how many labels of each class one client has, and count the wrong labels."""
    observation, truth = client_of(job.setting, job.index, job.seed)
    began = time.perf_counter()
    labels = label_estimator(job.method.options)(observation, generator(job.seed, "labels", job.index))
    seconds = time.perf_counter() - began
    counts, reference = truth.label_counts, truth.reference_targets
    known = None if reference is None else torch.bincount(reference, minlength=len(counts))
    errors = float(label_errors(labels, truth.targets))
    measure = single("label_errors", errors, chance=label_error_chance(len(truth), len(counts), known).value)
    return Outcome({"label_errors": measure}, 1, seconds)


LABELS = Kind(estimate_labels, ONE_MESSAGE, check=check_client)
