"""The attackers of an audit. Each attacker runs one attack with its options, and scores the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from leakgauge.attacks import registry
from leakgauge.attacks.analytic.named_words import named_by
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.diagnosis import diagnose
from leakgauge.attacks.inversion.adaptive import adapts
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.unknown_rate import threat_model
from leakgauge.core.errors import InvalidInput, LeakgaugeError, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.core.observation import LABEL_FIELDS, Observation
from leakgauge.core.progress import Report, TimeLimit, silent
from leakgauge.core.truth import Truth
from leakgauge.evaluation import Score, score
from leakgauge.evaluation.chance import other_samples
from leakgauge.evaluation.inferred import HiddenColumn, attribute_chance, share_measure
from leakgauge.evaluation.verdict import Verdict, judge
from leakgauge.runtime.display import duration
from leakgauge.workflows.result import check_measured

#: A document of plain values and the samples that it is about.
Scored = tuple[dict[str, Any], dict[str, Tensor]]
#: The names of the tensors that hold clients' samples. The guess is the mean of samples of other clients.
SAMPLES = ("original", "reconstructed", "guess", "targets", "labels")
#: The PSNR in dB from which on slower attacks could not show more of a picture.
NEARLY_EXACT = 40.0


@dataclass(frozen=True)
class Trial:
    """One client to attack.

    Args:
        observation: The client's message, as the attacker sees it.
        truth: The client's own samples, with which the result is scored.
        seed: The seed of the attack.
        threshold: The PSNR in dB above which a sample counts as recovered.
        device: The device of the attack.
        scale: The factor by which the attack's number of steps is multiplied.
        seconds: The time after which an attack on samples is ended, and its best result so far is scored. ``None``
            means no limit.
        shuffled: The same observation with the message of somebody else, for the control of an attack with public
            data.
    """

    observation: Observation
    truth: Truth
    seed: int = 0
    threshold: float = 20.0
    device: str | None = None
    scale: float = 1.0
    seconds: float | None = None
    shuffled: Observation | None = None


@dataclass(frozen=True, repr=False)
class Attacker:
    """An attack with its options, which can be called on one client.

    Args:
        name: The name of the attack.
        options: The options that differ from the attack's defaults.
        column: The name of the sensitive column, for attacks that infer a column.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    column: str | None = None

    def __repr__(self) -> str:
        attack = repr(registry.build(self.name, **self.options))
        return attack if self.recovers == "samples" else f"{attack} on {self.column!r}"

    @property
    def recovers(self) -> str:
        """The kind of data that the attack recovers, such as ``"samples"``."""
        return registry.ATTACKS[self.name].recovers

    @property
    def needs_public(self) -> bool:
        """Whether the attack learns from public data."""
        return registry.ATTACKS[self.name].needs_public

    def adapts(self, observation: Observation) -> bool:
        """Return whether the attack works differently for an attacker who knows the client's defences."""
        return self.recovers == "samples" and adapts(registry.build(self.name, **self.options), observation)

    def __call__(self, trial: Trial, report: Report) -> Scored:
        """Attack one client, and score the result.

        Args:
            trial: The client to attack.
            report: The function that is called after each step.
        """
        return _SCORING[self.recovers](self, trial, report)


def _rebuild(attacker: Attacker, trial: Trial, report: Report) -> Scored:
    """Rebuild the client's samples, and compare the rebuilt samples with the true samples."""
    observation, truth = trial.observation, trial.truth
    whole = registry.build(attacker.name, **attacker.options)
    attack = whole if trial.scale == 1 else whole.scaled(trial.scale)
    fit = registry.ATTACKS[attacker.name].fits(observation)  # a defence may have changed what the attack needs
    zero = not any(bool(value.any()) for value in observation.difference().values())
    if zero:
        words = "the update is zero, so it holds nothing about the samples"
        result, ended = _nothing(attack, trial, Outcome("finished", 0, words)), None
    elif fit.applies:
        result, ended = _in_time(attack, trial, report)
    else:
        words = f"does not apply to this message: {fit.reason}"
        result, ended = _nothing(attack, trial, Outcome("finished", 0, words)), None
    check_measured(result)
    reference, _ = other_samples(truth)
    learns = registry.ATTACKS[attacker.name].needs_public
    blind = result.outcome.kind in ("guess", "failed")
    if blind and reference is not None and not learns:  # the best guess of an attacker is the chance level
        result = replace(result, samples=reference.mean(0).expand_as(result.samples).clone())
    threshold = trial.threshold if truth.data.is_image else None
    known = {"public": observation.public if learns else None, "by_label": _may_know_labels(result, observation)}
    scored = score(result, truth, threshold=threshold, **known, **named_by(observation))  # type: ignore[arg-type]
    document = _document(scored.metrics, str(result.outcome), result.seconds, observation)
    document |= {"loss": plain(result.loss), "attack": result.attack, "notes": list(scored.notes)}
    searched = result.trace is not None and not blind
    solves = registry.ATTACKS[attacker.name].exact
    proven = solves and result.outcome.kind == "converged"
    document |= {
        "zero": zero,
        "cut_short": ended is not None or (trial.scale < 1 and attack is not whole),
        "interrupted": ended == "interrupt",
        "failed": result.outcome.kind == "failed",
        "proven": proven,
        "settled": proven or (solves and _nearly_exact(scored)),
        "searched": searched,
        "falling": searched and result.trace is not None and still_falling(result.trace.losses),
    }
    if learns and fit.applies and ended is None and not zero and trial.shuffled is not None:
        document["shuffled"] = _with_another_message(attack, trial, threshold)
    if judge([scored.metrics], labels_granted=True) is not Verdict.RECOVERS_DATA:
        document["diagnosis"] = list(diagnose(observation, result))
    missing = 0.0 if truth.data.is_image else math.nan
    tensors = {"original": truth.inputs, "reconstructed": scored.pairing.apply(result.samples.float(), missing)}
    if not truth.data.is_image and truth.targets.dim() == 1:  # a page shows a row of a table with its target
        tensors["targets"] = truth.targets.float()
        if result.labels is not None and result.labels.shape == result.samples.shape[:1]:
            tensors["labels"] = scored.pairing.apply(result.labels.float(), missing=math.nan)
    for name in ("psnr", "ssim", "features"):
        if name in scored and (values := scored[name].per_sample) is not None:
            tensors[name] = values.float()
    if reference is not None and len(reference):
        tensors["guess"] = reference.mean(0).float()
    if result.trace is not None:
        tensors["losses"] = result.trace.losses.float()
    return document, tensors


def _with_another_message(attack: Attack, trial: Trial, threshold: float | None) -> dict[str, Any]:
    """Return the scores of the same attack on the message of a public client, which must find nothing of this client.

    This is the control with shuffled messages. Only what the client's own message adds counts as found.
    """
    assert trial.shuffled is not None
    limit = TimeLimit(silent, trial.seconds)
    result = attack(trial.shuffled, seed=trial.seed, device=trial.device, progress=limit)
    public = trial.shuffled.public
    scored = score(replace(result, labels=None), trial.truth, threshold=threshold, public=public)
    return _rows(scored.metrics)


def _may_know_labels(result: Reconstruction, observation: Observation) -> bool:
    """Return whether a guess without the message may use the labels.

    An attack that explains nothing returns a guess. It then has no labels beyond those that are granted.
    """
    granted = any(getattr(observation, name) is not None for name in LABEL_FIELDS)
    return granted or result.outcome.kind != "guess"


def _nearly_exact(scored: Score) -> bool:
    """Return whether every sample is so near to the truth that a slower attack could not show more."""
    if "rows" in scored:
        return scored["rows"].value == 1
    values = scored["psnr"].per_sample if "psnr" in scored else None
    return values is not None and bool(len(values)) and float(values.min()) >= NEARLY_EXACT


def _in_time(
    attack: Attack, trial: Trial, report: Report
) -> tuple[Reconstruction, Literal["budget", "interrupt"] | None]:
    """Return the result of an attack, and whether the time limit of the trial or Ctrl-C has ended the attack.

    An attack that had no result when the time limit ended it returns no samples. If Ctrl-C ended it before it had a
    result, ``KeyboardInterrupt`` is raised.
    """
    limit = TimeLimit(report, trial.seconds)
    try:
        result = attack(trial.observation, seed=trial.seed, device=trial.device, progress=limit)
    except KeyboardInterrupt:
        if not limit.passed or limit.interrupted:
            raise
        words = "ended by the budget before it had a result"
        return _nothing(attack, trial, Outcome("interrupted", 0, words)), "budget"
    if limit.interrupted or (result.outcome.kind == "interrupted" and not limit.passed):
        return result, "interrupt"
    if limit.passed and len(result.samples):
        sentence = f"ended by the budget after {duration(result.seconds)}, and the best result so far is returned"
        result = replace(result, outcome=replace(result.outcome, sentence=sentence))
    return result, "budget" if limit.passed else None


def _nothing(attack: Attack, trial: Trial, outcome: Outcome) -> Reconstruction:
    """Return a result without samples."""
    data = trial.observation.data
    seconds = (trial.seconds or 0.0) if outcome.kind == "interrupted" else 0.0
    labels = torch.zeros(0, dtype=torch.float if data.classes is None else torch.long)
    return Reconstruction(
        torch.zeros(0, *data.shape), labels, outcome, attack=repr(attack), seed=trial.seed, seconds=seconds
    )


def _infer_attribute(attacker: Attacker, trial: Trial, report: Report) -> Scored:
    """Infer the values of the sensitive column, and compare them with the true values."""
    began = time.perf_counter()
    assert attacker.column is not None
    observation = trial.observation if trial.device is None else trial.observation.to(trial.device)
    hidden = HiddenColumn.of(trial.truth, attacker.column)
    attributes = registry.build(attacker.name, **attacker.options)([observation], hidden.records, report=report)
    right = attributes.choice.cpu() == hidden.values
    chance = attribute_chance(hidden, trial.truth, attacker.column)
    measure = share_measure("attribute_accuracy", [right], chance)
    seconds = time.perf_counter() - began
    document = _document({measure.name: measure}, attributes.outcome, seconds, observation)
    knowledge = f"For {attacker.name} it knows the client's records and targets, except the column {attacker.column!r}."
    document["threat_model"].append(knowledge)
    return document | {"loss": None, "attack": repr(attacker), "notes": []}, {}


_SCORING: dict[str, Callable[[Attacker, Trial, Report], Scored]] = {
    "samples": _rebuild,
    "attribute": _infer_attribute,
}


def _document(
    measures: Mapping[str, Measure], outcome: str, seconds: float, observation: Observation
) -> dict[str, Any]:
    return {
        "scores": _rows(measures),
        "outcome": outcome,
        "seconds": seconds,
        "client": observation.client,
        "threat_model": threat_model(observation),
    }


def _rows(measures: Mapping[str, Measure]) -> dict[str, Any]:
    return {name: {key: plain(value) for key, value in one.to_row().items()} for name, one in measures.items()}


def still_falling(losses: Tensor, by: float = 0.1) -> bool:
    """Return whether the last quarter of an attack's steps still reduced its best loss.

    Args:
        losses: The loss at each step.
        by: The smallest relative decrease of the best loss that counts as still falling.
    """
    quarter = len(losses) // 4
    if not quarter or not bool(losses.isfinite().all()):
        return False
    before = float(losses[:-quarter].min())
    return before > 0 and float(losses.min()) < (1 - by) * before


def measures_of(document: Mapping[str, Any], key: str = "scores") -> dict[str, Measure]:
    """Convert the stored result of one attacked client to a dictionary from metrics to measures.

    Args:
        document: The stored result.
        key: ``"scores"``, or ``"shuffled"`` for the control with shuffled messages.
    """
    return {name: Measure.from_row(row) for name, row in document.get(key, {}).items()}


def read_attacker(name: Any, options: Mapping[str, Any], column: str | None, where: str) -> Attacker:
    """Return the attacker that runs the named attack. Raise an error if the attack cannot run on a single message.

    Args:
        name: The name of the attack.
        options: The options of the attack.
        column: The name of the sensitive column of the data. It is ``None`` if there is no such column.
        where: The place of the name in the configuration, for error messages.
    """
    known = [spec.name for spec in registry.specs(reads="update") if spec.recovers in _SCORING]
    if name not in known:
        raise UnknownName(f"attack ({where})", name, known)
    if registry.ATTACKS[name].recovers == "attribute" and column is None:
        raise InvalidInput(
            f"{where}: {name} does not apply here. Name a sensitive column with "
            '[data] options = { sensitive = "..." }'
        )
    try:
        registry.build(name, **options)
    except LeakgaugeError as problem:
        raise InvalidInput(f"{where}: {problem}") from problem
    return Attacker(name, dict(options), column)


def plain(value: Any) -> Any:
    """Return the value in a form that JSON can store. A number that is not finite becomes ``None``."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
