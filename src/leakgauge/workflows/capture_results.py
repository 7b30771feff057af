"""One capture, and the result of an attack on it as it is scored, saved and read from the cache again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.reconstruction_file import from_parts, save_reconstruction
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.measure import Measure
from leakgauge.core.truth import Truth
from leakgauge.evaluation import Score, score
from leakgauge.evaluation.pairing import Pairing
from leakgauge.evaluation.recipe_check import RecipeCheck
from leakgauge.evaluation.verdict import LABELS
from leakgauge.runtime.cache import Entry


@dataclass(frozen=True, eq=False)
class Capture:
    """One capture to attack.

    Args:
        file: The file of the capture.
        client: The name of the client.
        threat_model: Sentences about what the attacker sees and knows.
        labels_granted: Whether the attacker is given the labels or their counts.
        data: The description of the client's data.
        truth: The client's own data. It is ``None`` if the data is not given.
        determined: The reason why the message may determine the samples, or the empty text.
        zero: Whether the update is zero.
        named: The options of the score if the message names words of the client (:mod:`.named_words`).
        check: Whether the recipe explains the message, if the client's own data is given.
        unknown: The settings of the client's training that the attacker does not know.
    """

    file: Path
    client: str
    threat_model: tuple[str, ...]
    labels_granted: bool
    data: DataSpec
    truth: Truth | None = field(default=None, repr=False)
    named: Mapping[str, Any] = field(default_factory=dict)
    determined: str = ""
    zero: bool = False
    check: RecipeCheck | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AttackedCapture:
    """One capture and the result of the attack on it.

    Args:
        capture: The attacked capture.
        reconstruction: The result of the attack. If samples are omitted, it has no samples and no labels.
        score: The score of the result. It is ``None`` if the client's own data is not given.
        cached: Whether the result was computed in an earlier run.
    """

    capture: Capture
    reconstruction: Reconstruction
    score: Score | None = None
    cached: bool = False

    @property
    def telling(self) -> dict[str, Measure]:
        """The measures that may show leakage. If the attack returned a guess, these are the measures of labels."""
        measures = {} if self.score is None else dict(self.score.metrics)
        blind = self.reconstruction.outcome.kind in ("guess", "failed")
        return {name: measure for name, measure in measures.items() if not blind or name in LABELS}


def scored_capture(capture: Capture, reconstruction: Reconstruction, *, cached: bool = False) -> AttackedCapture:
    """Return the result of an attack on a capture, with its score if the client's own data is given.

    Args:
        capture: The attacked capture.
        reconstruction: The result of the attack.
        cached: Whether the result was computed in an earlier run.
    """
    scored = None if capture.truth is None else score(reconstruction, capture.truth, **capture.named)
    return AttackedCapture(capture, reconstruction, scored, cached)


def saved_capture(one: AttackedCapture, output: Path, samples: bool) -> AttackedCapture:
    """Save the reconstruction to a file, or remove its samples if they are omitted. Return what is left.

    Args:
        one: The capture and the result of the attack on it.
        output: The folder of the file.
        samples: Whether samples are kept.
    """
    made = one.reconstruction
    if not samples:
        return replace(one, reconstruction=replace(made, samples=made.samples[:0], labels=None, epochs=None))
    target = output / file_name(one.capture)
    save_reconstruction(made, target)  # another attack may have written the file in between
    return one


def score_to_plain(one: AttackedCapture) -> dict[str, Any]:
    """Return the score as plain values, with a hash of the samples that it was computed with.

    Args:
        one: The capture and the result of the attack on it.
    """
    if one.score is None:
        return {"score": None, "truth": None}
    rows = {name: measure.to_row() for name, measure in one.score.metrics.items()}
    plain = {"measures": rows, "threshold": one.score.threshold, "notes": one.score.notes}
    return {"score": plain, "truth": truth_digest(one.capture.truth)}


def stored_capture(capture: Capture, entry: Entry | None, samples: bool) -> AttackedCapture | None:
    """Return the result in an entry of the cache, or ``None`` if the attack must run again.

    An entry without samples has the score that the samples had. It is of use if the client's data is the same, and if
    samples are omitted now too.

    Args:
        capture: The capture.
        entry: The entry, which may be missing.
        samples: Whether samples are needed.
    """
    if entry is None:
        return None
    if "samples" in entry.tensors:
        return scored_capture(capture, from_parts(entry.document, entry.tensors), cached=True)
    if samples or entry.document["truth"] != truth_digest(capture.truth):
        return None
    made = from_parts(entry.document, {**entry.tensors, "samples": torch.zeros(0)})
    plain = entry.document["score"]
    if plain is None:
        return AttackedCapture(capture, made, None, cached=True)
    measures = {name: Measure.from_row(row) for name, row in plain["measures"].items()}
    nothing = Pairing(torch.zeros(0, dtype=torch.long))
    return AttackedCapture(capture, made, Score(measures, nothing, plain["threshold"], plain["notes"]), cached=True)


def truth_digest(truth: Truth | None) -> str | None:
    """Return a hash of the samples that a score is computed with, or ``None`` if there are none.

    Args:
        truth: The samples.
    """
    if truth is None:
        return None
    digest = hashlib.sha256()
    for tensor in (truth.inputs, truth.targets, truth.reference_inputs, truth.reference_targets):
        digest.update(b"none" if tensor is None else f"{tensor.shape}".encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def file_name(capture: Capture) -> str:
    """Return the name of the file that gets the rebuilt samples of a capture."""
    return f"{capture.file.stem}.reconstruction.safetensors"
