"""The score of a reconstruction, compared with the client's samples. Every metric comes with a chance level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.core.observation import DataSpec
from leakgauge.core.public_data import PublicData
from leakgauge.core.truth import Truth
from leakgauge.evaluation.chance import (
    NO_REFERENCE,
    Chance,
    Guess,
    blind_guesses,
    chance_of,
    known_without_message,
    other_samples,
)
from leakgauge.evaluation.intervals import Interval, mean_interval, wilson_interval
from leakgauge.evaluation.label_chance import label_accuracy_chance, label_error_chance, target_error_chance
from leakgauge.evaluation.metrics.bags_of_tokens import whole, words
from leakgauge.evaluation.metrics.pixels import WINDOW_RADIUS
from leakgauge.evaluation.metrics.registry import METRICS
from leakgauge.evaluation.metrics.targets import label_accuracy, label_errors, target_error
from leakgauge.evaluation.pairing import Pairing, usable
from leakgauge.evaluation.public_chance import public_guesses
from leakgauge.evaluation.ruler import Ruler
from leakgauge.evaluation.token_chance import token_measure

#: The PSNR in dB above which an image counts as recovered.
DEFAULT_THRESHOLD = 20.0


@dataclass(frozen=True, eq=False)
class Score:
    """The measures of one client's reconstruction. Use ``print(score)`` or ``score["psnr"].value``.

    Args:
        metrics: A dictionary from the name of each metric to its measure.
        pairing: The assignment of reconstructions to originals.
        threshold: The PSNR in dB above which an image counts as recovered. It is ``None`` for a table or a series.
        notes: Sentences about unusual properties of the reconstruction or of the client's samples.
    """

    metrics: dict[str, Measure]
    pairing: Pairing
    threshold: float | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Measure:
        if name not in self.metrics:
            raise UnknownName("metric in this score called", name, self.metrics)
        return self.metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self.metrics

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def above_chance(self, name: str) -> bool:
        """Return whether the whole confidence interval of a metric is better for the attacker than chance."""
        return self[name].above_chance

    def to_rows(self) -> list[dict[str, object]]:
        """Return the measures as a list of plain dictionaries, one for each metric."""
        return [measure.to_row() for measure in self.metrics.values()]

    def __str__(self) -> str:
        rows = [("metric", "value", "95% interval", "chance", "n")]
        for measure in self.metrics.values():
            name = f"{measure.name} ({measure.unit})" if measure.unit else measure.name
            rows.append((name, _number(measure.value), measure.interval(), _number(measure.chance), str(measure.n)))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
        if self.threshold is not None:
            lines.append(f"recovered: PSNR above {self.threshold:g} dB")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        row[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
    ]


class Result(Protocol):
    """The attributes that a reconstruction must have so that it can be scored."""

    @property
    def samples(self) -> Tensor:
        """The reconstructed samples without normalisation, (M, *shape)."""

    @property
    def labels(self) -> Tensor | None:
        """The estimated labels or targets of the samples, (M,), or ``None`` if the attack estimated none."""


def score(
    result: Result,
    truth: Truth,
    *,
    threshold: float | None = None,
    lpips: bool = False,
    tokens: Sequence[int] = (),
    rows_of_words: bool = False,
    public: PublicData | None = None,
    by_label: bool = True,
) -> Score:
    """Measure how much of a client's data a reconstruction shows.

    - For images, the score holds PSNR, SSIM, MSE and the share of recovered images, and LPIPS on request.
    - For tables and series, it holds the squared error in standard deviations and the share of recovered features.
    - For labels, it holds the number of wrong labels, and the share of right labels after pairing.
    - For other targets, it holds the error after pairing. It is the absolute error of numbers, or the share of wrong
      entries of several labels or a mask.

    If some images are known without the message, such as black slices of a scan, the figures of samples are about the
    other images. A note names the number of known images. If all images are known, the figures are about all of them.

    Reconstructions with NaN or infinite values raise no error. They recover no original, and the score has a note about
    them.

    Args:
        result: The reconstruction. If it has no labels, only its samples are scored.
        truth: The client's samples and labels, with reference samples for the chance level.
        threshold: The PSNR in dB above which an image counts as recovered. The default is 20 dB.
        lpips: Whether LPIPS is measured too. It needs the weights of AlexNet.
        tokens: The indices of the values that are tokens of a text, in the flattened sample. The features of a row then
            count tokens in any order, and the score also compares the set of all tokens with the client's set.
        rows_of_words: Whether the columns are words, of which a row has few. The score then also compares the set of
            all words with the client's set.
        public: The public data of an attack that uses them. The chance level then includes what they show without the
            message (:mod:`leakgauge.evaluation.public_chance`).
        by_label: Whether this chance level also includes guesses of an attacker who knows the true labels.

    >>> from types import SimpleNamespace
    >>> from leakgauge.core.observation import DataSpec
    >>> images = torch.linspace(0, 1, 2 * 64).reshape(2, 1, 8, 8)
    >>> truth = Truth(images, torch.tensor([0, 1]), DataSpec((1, 8, 8), classes=2))
    >>> outcome = score(SimpleNamespace(samples=images.flip(0), labels=None), truth)
    >>> outcome["psnr"].value, outcome.above_chance("psnr")
    (100.0, True)
    """
    ruler = replace(_ruler(result, truth, threshold, lpips), tokens=tuple(tokens))
    quality = ruler(result.samples)
    reference, reference_targets = other_samples(truth)
    guesses = blind_guesses(ruler, reference, count=max(len(truth), len(result.samples)))
    known = known_without_message(guesses)
    of_samples = guesses if public is None else [*guesses, *public_guesses(ruler, public, truth, by_label=by_label)]
    measures = [_sample_measure(name, values, of_samples, known, ruler) for name, values in quality.values.items()]
    if tokens or rows_of_words:
        read = partial(whole, places=tuple(tokens)) if tokens else words
        measures.append(token_measure(result.samples, truth.inputs, read, reference, guesses))
    if result.labels is not None:
        labels = result.labels.detach().cpu()
        measures += _label_measures(labels, truth, quality.pairing, reference_targets, guesses)
    return Score(
        {measure.name: measure for measure in measures},
        quality.pairing,
        ruler.threshold if truth.data.is_image else None,
        (*_notes(result, truth, ruler, reference), *_note_on_known(known)),
    )


def _sample_measure(name: str, values: Tensor, guesses: list[Guess], known: Tensor, ruler: Ruler) -> Measure:
    """Return the measure of one metric over the samples that are not known without the message."""
    unknown = values[~known]
    chance = chance_of([guess.about(~known) for guess in guesses], name, METRICS[name].direction)
    share = name in ("recovered", "rows")
    interval = (
        wilson_interval(float(unknown.sum()), len(unknown))
        if share
        else mean_interval(unknown, limits=METRICS[name].limits)
    )
    measure = _measure(name, interval, chance, len(unknown), unknown, _data_range(name, ruler))
    return replace(measure, per_sample=values)


def _note_on_known(known: Tensor) -> list[str]:
    count = int(known.sum())
    verb = "is" if count == 1 else "are"
    sentence = f"{count} of {len(known)} images {verb} known without the message. The figures are about the others."
    return [sentence] if count else []


def _ruler(result: Result, truth: Truth, threshold: float | None, lpips: bool) -> Ruler:
    """Return the :class:`Ruler` that compares a result with the originals, or raise an error if this is impossible."""
    spec = truth.data
    if not len(truth):
        raise InvalidInput("the truth holds no samples, so there is nothing to score against")
    _check_samples(result.samples, spec)
    if result.labels is not None:
        _check_labels(result.labels, len(result.samples), spec)
    if not spec.is_image and (threshold is not None or lpips):
        raise InvalidInput("threshold and lpips are for images, but this data is a table or a series. Leave them out")
    data_range = 1.0
    if spec.is_image and not spec.bounded:
        data_range = float(truth.inputs.max() - truth.inputs.min()) or 1.0
    chosen = DEFAULT_THRESHOLD if threshold is None else threshold
    return Ruler(truth.inputs, spec, chosen, data_range, lpips)


def _check_samples(samples: Tensor, spec: DataSpec) -> None:
    if tuple(samples.shape[1:]) != spec.shape or samples.dim() != len(spec.shape) + 1:
        raise InvalidInput(
            f"the samples of the result have shape {tuple(samples.shape)}. The truth needs (count, "
            f"{', '.join(map(str, spec.shape))})"
        )
    if not samples.is_floating_point():
        raise InvalidInput(f"the samples of the result must be floats without normalisation, not {samples.dtype}")


def _check_labels(labels: Tensor, count: int, spec: DataSpec) -> None:
    if len(labels) != count:
        raise InvalidInput(f"the result has {len(labels)} labels for {count} samples. Return one for each sample")
    if spec.classes is None:
        return
    if labels.dim() != 1 or labels.is_floating_point():
        raise InvalidInput(f"labels must be (count,) whole numbers, not {labels.dtype} {tuple(labels.shape)}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < spec.classes:
        raise InvalidInput(
            f"labels must lie in 0 to {spec.classes - 1}, not {int(labels.min())} to {int(labels.max())}"
        )


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
        luck=chance.luck,
        luck_of_one=chance.luck_of_one,
        per_sample=per_sample,
    )


def _data_range(name: str, ruler: Ruler) -> float | None:
    return ruler.data_range if ruler.spec.is_image and name != "recovered" else None


def _label_measures(
    labels: Tensor, truth: Truth, pairing: Pairing, reference: Tensor | None, guesses: list[Guess]
) -> list[Measure]:
    """Return the measures of the labels, or of other targets."""
    true = truth.targets.detach().cpu()
    reference = None if reference is None else reference.detach().cpu()
    classes = truth.data.classes
    if classes is None:
        return [_target_measure(labels, true, pairing, reference, truth.data.target_values)]
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
        _measure("label_errors", errors, label_error_chance(len(true), classes, counts), trials),
        _measure("label_accuracy", accuracy, accuracy_chance, len(right), right),
    ]


def _target_measure(
    targets: Tensor, true: Tensor, pairing: Pairing, reference: Tensor | None, values: int | None
) -> Measure:
    targets = targets if len(targets) else true.new_zeros(0, *true.shape[1:])  # an attack that returns nothing
    finite = targets.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    error = target_error(pairing.apply(finite), true, values)
    interval = mean_interval(error, limits=METRICS["target_error"].limits)
    return _measure("target_error", interval, target_error_chance(true, reference, values), len(true), error)


def _notes(result: Result, truth: Truth, ruler: Ruler, reference: Tensor | None) -> list[str]:
    """Return one sentence about each unusual property of the reconstruction or of the client's samples."""
    comparable = usable(result.samples)
    count, broken, originals = len(comparable), int((~comparable).sum()), len(truth)
    missing = originals - count + broken
    notes = []
    if broken:
        notes.append(f"{broken} of {count} reconstructions hold NaN or infinite values and count as missing.")
    if missing > 0:
        notes.append(f"{missing} of {originals} originals have no reconstruction and count as not recovered.")
    if count > originals:
        notes.append(f"There are {count} reconstructions for {originals} originals. Random guesses get as many.")
    if truth.data.bounded:
        samples = result.samples[comparable]
        outside = ((samples < 0) | (samples > 1)).double()
        if outside.any():
            notes.append(f"{100 * float(outside.mean()):.3g}% of the values lay outside [0, 1] and were clipped.")
    if truth.data.is_image and not truth.data.bounded:
        notes.append(f"Pixels are unbounded. The data range is that of the originals, {ruler.data_range:.4g}.")
    if truth.data.is_image and min(truth.data.shape[1:]) < 2 * WINDOW_RADIUS + 1:
        notes.append("Images are smaller than SSIM's 11 x 11 window, so a smaller window is used.")
    if reference is None:
        notes.append(NO_REFERENCE)
    return notes
