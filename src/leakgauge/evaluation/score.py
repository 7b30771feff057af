"""Score a reconstruction against the truth, each figure beside its chance level."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.measure import Measure
from leakgauge.core.truth import Truth
from leakgauge.evaluation.chance import NO_REFERENCE, Chance, Guess, best, blind_guesses, other_samples
from leakgauge.evaluation.intervals import Interval, mean_interval, wilson_interval
from leakgauge.evaluation.label_chance import label_accuracy_chance, label_error_chance, target_error_chance
from leakgauge.evaluation.metrics.catalogue import METRICS
from leakgauge.evaluation.metrics.pixels import WINDOW_RADIUS
from leakgauge.evaluation.metrics.targets import label_accuracy, label_errors, target_error
from leakgauge.evaluation.pairing import Pairing, usable
from leakgauge.evaluation.results import Score
from leakgauge.evaluation.ruler import Ruler

DEFAULT_THRESHOLD = 20.0


class Result(Protocol):
    """What is scored: samples as a person sees them, (M, *shape), and their labels, (M,), or ``None``."""

    @property
    def samples(self) -> Tensor:
        """The reconstructed samples."""

    @property
    def labels(self) -> Tensor | None:
        """The estimated labels or targets of the samples."""


def score(result: Result, truth: Truth, *, threshold: float | None = None, lpips: bool = False) -> Score:
    """Measure how much of a client's data a reconstruction shows.

    Images are scored by PSNR, SSIM, MSE and the share recovered (PSNR above ``threshold``, by default 20 dB),
    with ``lpips=True`` also by LPIPS; tables by the squared error in standard deviations and by the share of
    features recovered; labels, where the result has any, by their errors and by their accuracy after pairing
    (a regression's by the error of its targets). A reconstruction with NaN or infinite values is no
    exception: its original counts as not recovered, and a note says so.

    >>> from types import SimpleNamespace
    >>> from leakgauge.core.observation import DataSpec
    >>> images = torch.linspace(0, 1, 2 * 64).reshape(2, 1, 8, 8)
    >>> truth = Truth(images, torch.tensor([0, 1]), DataSpec((1, 8, 8), classes=2))
    >>> outcome = score(SimpleNamespace(samples=images.flip(0), labels=None), truth)
    >>> outcome["psnr"].value, outcome.above_chance("psnr")
    (100.0, True)
    """
    ruler = _ruler(result, truth, threshold, lpips)
    quality = ruler(result.samples)
    reference, reference_targets = other_samples(truth)
    guesses = blind_guesses(ruler, reference, count=max(len(truth), len(result.samples)))
    measures = []
    for name, values in quality.values.items():
        chance = best({guess.source: guess.value(name) for guess in guesses}, METRICS[name].direction)
        share = name == "recovered"
        interval = (
            wilson_interval(float(values.sum()), len(values))
            if share
            else mean_interval(values, limits=METRICS[name].limits)
        )
        measures.append(_measure(name, interval, chance, len(values), values, _data_range(name, ruler)))
    if result.labels is not None:
        labels = result.labels.detach().cpu()
        measures += _label_measures(labels, truth, quality.pairing, reference_targets, guesses)
    return Score(
        {measure.name: measure for measure in measures},
        quality.pairing,
        ruler.threshold if truth.data.is_image else None,
        tuple(_notes(result, truth, ruler, reference)),
    )


def _ruler(result: Result, truth: Truth, threshold: float | None, lpips: bool) -> Ruler:
    spec, samples, labels = truth.data, result.samples, result.labels
    if not len(truth):
        raise InvalidInput("the truth holds no samples, so there is nothing to score against")
    if tuple(samples.shape[1:]) != spec.shape or samples.dim() != len(spec.shape) + 1:
        raise InvalidInput(
            f"the result's samples have shape {tuple(samples.shape)}; expected (count, "
            f"{', '.join(map(str, spec.shape))}), as the truth's"
        )
    if not samples.is_floating_point():
        raise InvalidInput(f"the result's samples must be floats as a person sees them, not {samples.dtype}")
    if labels is not None and len(labels) != len(samples):
        raise InvalidInput(f"the result has {len(labels)} labels for {len(samples)} samples; expected one each")
    if labels is not None and spec.classes is not None:
        if labels.dim() != 1 or labels.is_floating_point():
            raise InvalidInput(f"labels must be (count,) whole numbers, not {labels.dtype} {tuple(labels.shape)}")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < spec.classes:
            raise InvalidInput(
                f"labels must lie in 0 to {spec.classes - 1}, not {int(labels.min())} to {int(labels.max())}"
            )
    if not spec.is_image and (threshold is not None or lpips):
        raise InvalidInput("threshold and lpips are for images; this data is a table")
    data_range = 1.0
    if spec.is_image and not spec.bounded:
        data_range = float(truth.inputs.max() - truth.inputs.min()) or 1.0
    chosen = DEFAULT_THRESHOLD if threshold is None else threshold
    return Ruler(truth.inputs, spec, chosen, data_range, lpips)


def _measure(
    name: str,
    interval: Interval,
    chance: Chance,
    count: int,
    per_sample: Tensor | None = None,
    data_range: float | None = None,
) -> Measure:
    metric = METRICS[name]
    worst = None
    if per_sample is not None and len(per_sample):
        worst = float(per_sample.max() if metric.direction == "higher" else per_sample.min())
    return Measure(
        name,
        interval.mean,
        interval.low,
        interval.high,
        chance=chance.value,
        n=count,
        of="labels" if name == "label_errors" else "samples",
        direction=metric.direction,
        worst=worst,
        unit=metric.unit,
        chance_source=chance.source,
        data_range=data_range,
        per_sample=per_sample,
    )


def _data_range(name: str, ruler: Ruler) -> float | None:
    return ruler.data_range if ruler.spec.is_image and name != "recovered" else None


def _label_measures(
    labels: Tensor, truth: Truth, pairing: Pairing, reference: Tensor | None, guesses: list[Guess]
) -> list[Measure]:
    true = truth.targets.detach().cpu()
    reference = None if reference is None else reference.detach().cpu()
    classes = truth.data.classes
    if classes is None:
        known = labels.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        error = target_error(pairing.apply(known), true.double())
        return [
            _measure(
                "target_error",
                mean_interval(error, limits=METRICS["target_error"].limits),
                target_error_chance(true, reference),
                len(true),
                error,
            )
        ]
    wrong, trials = label_errors(labels, true), max(len(labels), len(true))
    share = wilson_interval(wrong, trials)
    assert share.low is not None
    assert share.high is not None
    errors = Interval(float(wrong), share.low * trials, share.high * trials)
    counts = None if reference is None else torch.bincount(reference, minlength=classes)
    right = label_accuracy(pairing.apply(labels, missing=-1), true)
    accuracy = wilson_interval(float(right.sum()), len(right))
    accuracy_chance = label_accuracy_chance(true, classes, reference, guesses)
    return [
        _measure("label_errors", errors, label_error_chance(truth.label_counts.cpu(), counts), trials),
        _measure("label_accuracy", accuracy, accuracy_chance, len(right), right),
    ]


def _notes(result: Result, truth: Truth, ruler: Ruler, reference: Tensor | None) -> list[str]:
    fit = usable(result.samples)
    count, broken, wanted = len(fit), int((~fit).sum()), len(truth)
    notes = []
    if broken:
        notes.append(f"{broken} of {count} reconstructions hold NaN or infinite values and count as missing.")
    if count - broken < wanted:
        notes.append(f"{wanted - count + broken} of {wanted} originals have no reconstruction: not recovered.")
    if count > wanted:
        notes.append(f"There are {count} reconstructions for {wanted} originals; random guesses get as many.")
    if truth.data.bounded:
        outside = ((result.samples[fit] < 0) | (result.samples[fit] > 1)).double()
        if outside.any():
            notes.append(f"{100 * float(outside.mean()):.3g}% of the values lay outside [0, 1] and were clipped.")
    if truth.data.is_image:
        if not truth.data.bounded:
            notes.append(f"Pixels are unbounded; the data range is the originals' own, {ruler.data_range:.4g}.")
        if min(truth.data.shape[1:]) < 2 * WINDOW_RADIUS + 1:
            notes.append("Images are smaller than SSIM's 11 x 11 window; a smaller window is used.")
    if reference is None:
        notes.append(NO_REFERENCE)
    return notes
