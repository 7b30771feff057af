"""The report of an attack on captures, which consists of an HTML page, pictures and ``captures.json``.

Captures are files that hold what a server saw of one client in one round.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leakgauge.core.errors import printable
from leakgauge.core.own_files import write_own
from leakgauge.evaluation.chance import other_samples
from leakgauge.evaluation.verdict import Verdict
from leakgauge.reports.findings import controls_section, document, shared_sections, write_json
from leakgauge.reports.page import Page, Section, write_page
from leakgauge.reports.pictures import contact_sheet, to_png
from leakgauge.reports.rebuilt_rows import Rebuilt
from leakgauge.reports.series import charts_of, has_lines

if TYPE_CHECKING:
    from leakgauge.evaluation.recipe_check import RecipeCheck
    from leakgauge.workflows.attack_captures import CaptureAttack
    from leakgauge.workflows.capture_results import AttackedCapture

#: The largest number of captures whose pictures the page shows.
SHOWN = 12
#: The largest number of refused files that the report names one by one.
MOST_NAMED = 12
METRICS = ("psnr", "features", "recovered", "label_errors", "target_error")


def write_captures(result: CaptureAttack, folder: Path, *, command: str = "", redact: str = "none") -> Path:
    """Write the page, one picture for each capture and ``captures.json``, and return the path of the page.

    Args:
        result: The result of the attack on the captures.
        folder: The folder for the files.
        command: The command line of the attack, which the page shows.
        redact: ``"none"`` shows clients' samples on pictures, and ``"omit"`` draws no pictures.
    """
    sections = [
        *shared_sections(result),
        *_recipes(result),
        Section("What the attacker sees and knows", result.attacked[0].capture.threat_model if result.attacked else ()),
        Section(
            "What came back",
            [f"Attack: {result.attack!r}", *(printable(note, longest=1000) for note in result.notes)],
            captures_table(result),
        ),
        *controls_section(result.controls),
    ]
    for number, one in enumerate(result.attacked):
        picture = None if redact == "omit" else _picture(one)
        if picture is not None:
            write_own(folder / f"{one.capture.file.stem}.png", picture)
        if number < SHOWN:
            name = printable(one.capture.file.stem)
            notes = [] if one.score is None else list(one.score.notes)
            rows = None if redact == "omit" else _rows(one)
            if rows is not None:
                sections.append(rows.section(name, " ".join(["The rebuilt rows.", *notes])))
                continue
            sections.append(
                Section(name, notes, picture=picture, shows_samples=True, alt=f"reconstructions from {name}")
            )
    if result.refused:
        sections.append(Section("Files that were refused", refused_sentences(result.refused)))
    sections.append(Section("How to run it again", code=command or "leakgauge attack CAPTURES"))
    notes = [printable(note, longest=1000) for note in result.notes]
    write_json(
        {**document(result), "notes": notes, "captures": [_plain(one) for one in result.attacked]},
        folder / "captures.json",
    )
    page = Page("Leakgauge attack on captures", result.verdict, summary(result), sections)
    return write_page(page, folder / "captures.html")


def summary(result: CaptureAttack) -> str:
    """Return the verdict on all captures as a sentence, with the number of captures, and why a recipe does not fit."""
    count = len(result.attacked)
    reasons = [one.reason for one in result.findings if one.verdict is Verdict.UNEXPLAINED]
    reasons += result.knowledge
    attacked = f"Attacked: {count} capture{'s' * (count != 1)}."
    return printable(" ".join([result.verdict.sentence, attacked, *reasons]), longest=2000)


def captures_table(result: CaptureAttack, *, brief: bool = False) -> list[list[str]]:
    """Return a table with one row for each attacked capture. The first row holds the headings.

    Args:
        result: The result of the attack on the captures.
        brief: Whether the texts about the outcomes of attacks are shortened.
    """
    metrics = [name for name in METRICS if any(one.score and name in one.score for one in result.attacked)]
    rows = [["client", "round", "loss", "seconds", *(f"{name} (chance)" for name in metrics), "outcome"]]
    for one in result.attacked:
        made = one.reconstruction
        figures = [
            f"{one.score[name].value:.3g} ({one.score[name].chance:.3g})" if one.score and name in one.score else "-"
            for name in metrics
        ]
        outcome = str(made.outcome)
        words = outcome.partition(":")[0].partition(";")[0] if brief else outcome
        cells = [made.client, str(made.round), f"{made.loss:.3g}", f"{made.seconds:.1f}"]
        rows.append([printable(text) for text in (*cells, *figures, words + (" (cached)" if one.cached else ""))])
    return rows


def _recipes(result: CaptureAttack) -> list[Section]:
    """Return a section about whether the recipes explain the messages, if any capture was checked."""
    checked = [(one.capture, one.capture.check) for one in result.attacked if one.capture.check is not None]
    wrong = [pair for pair in checked if pair[1].explained is False]
    shown = [
        printable(f"{capture.client}, {capture.file.stem}: {check.sentence}") for capture, check in wrong or checked
    ]
    left = len(shown) - MOST_NAMED
    more = [f"and {left} more captures"] if left > 0 else []
    return [Section("Does the recipe explain the messages?", shown[:MOST_NAMED] + more)] if checked else []


def refused_sentences(refused: tuple[str, ...]) -> list[str]:
    """Return sentences about capture files that could not be used.

    There is one sentence for each of the first twelve files. A last sentence counts the other files.
    """
    more = [f"and {len(refused) - MOST_NAMED} more files were refused"] if len(refused) > MOST_NAMED else []
    return [printable(reason) for reason in refused[:MOST_NAMED]] + more


def _picture(one: AttackedCapture) -> bytes | None:
    samples, spec = one.reconstruction.samples.float(), one.capture.data
    if has_lines(spec) and len(samples):
        return charts_of(_beside_originals(one, samples, math.nan), spec)
    if samples.dim() != 4 or samples.shape[1] not in (1, 3):
        return None
    return to_png(contact_sheet(_beside_originals(one, samples)))


def _beside_originals(one: AttackedCapture, samples: Tensor, missing: float = 0.0) -> dict[str, Tensor]:
    """Return the reconstructed samples, below their originals if these are known."""
    if one.capture.truth is None or one.score is None:
        return {"reconstructed": samples}
    return {"original": one.capture.truth.inputs, "reconstructed": one.score.pairing.apply(samples, missing)}


def _rows(one: AttackedCapture) -> Rebuilt | None:
    """Return the rebuilt rows of a table, or ``None`` if a capture is not one of a table with names of columns."""
    made, spec, truth = one.reconstruction, one.capture.data, one.capture.truth
    samples = made.samples.float()
    if samples.dim() != 2 or not spec.columns or not len(samples):
        return None
    labels = made.labels if made.labels is not None and made.labels.shape == samples.shape[:1] else None
    if truth is None or one.score is None:
        return Rebuilt(spec, samples, labels=labels)
    paired = one.score.pairing.apply
    reference, _ = other_samples(truth)
    others = truth.targets[:0] if truth.reference_targets is None else truth.reference_targets
    return Rebuilt(
        spec,
        paired(samples, math.nan),
        truth.inputs,
        None if reference is None or not len(reference) else reference.mean(0),
        truth.targets if truth.targets.dim() == 1 else None,
        None if labels is None else paired(labels.float(), math.nan),
        target_std=float(torch.cat([truth.targets, others]).double().std(correction=0)),
    )


def _plain(one: AttackedCapture) -> dict[str, Any]:
    made = one.reconstruction
    return {
        "file": printable(one.capture.file.name),
        "client": printable(made.client),
        "round": made.round,
        "outcome": str(made.outcome),
        "seconds": made.seconds,
        "cached": one.cached,
        "recipe": None if one.capture.check is None else _recipe(one.capture.check),
        "scores": {} if one.score is None else {name: one.score[name].to_row() for name in one.score},
    }


def _recipe(check: RecipeCheck) -> dict[str, Any]:
    residual = check.residual if math.isfinite(check.residual) else None
    return {"explained": check.explained, "residual": residual, "sentence": printable(check.sentence)}
