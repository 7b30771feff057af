"""The report of inference from many rounds, which consists of an HTML page and ``inferred.json``.

The attacks rebuild the clients' own models, and infer hidden attributes and the owners of records.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leakgauge.attacks import registry
from leakgauge.core.errors import printable
from leakgauge.reports.advice import advice
from leakgauge.reports.captures import refused_sentences
from leakgauge.reports.findings import document, shared_sections, write_json
from leakgauge.reports.page import Page, Section, write_page

if TYPE_CHECKING:
    from leakgauge.workflows.infer_captures import InferredCaptures

HEAD = ["about", "attack", "right", "95% interval", "chance", "client to client", "clients", "records", "verdict"]
#: The indices of the columns that a narrow terminal shows.
BRIEF = (0, 1, 2, 3, 4, 8)


def write_inference(result: InferredCaptures, folder: Path, command: str = "") -> Path:
    """Write the page and ``inferred.json``, and return the path of the page.

    Args:
        result: The result of the inference.
        folder: The folder for the files.
        command: The command line of the inference, which the page shows.
    """
    sections = [
        *shared_sections(result),
        Section("What the attacker sees and knows", [printable(line) for line in result.threat_model]),
    ]
    if result.inferences:
        names = dict.fromkeys(inference.attack for inference in result.inferences)
        words = [f"{name}: {registry.ATTACKS[name].summary}" for name in names]
        heading = "What the messages show about records"
        sections.append(Section(heading, [*words, "Shares are of all records together."], inferences_table(result)))
    method = f"Method: {next(iter(result.models.values())).method}. Losses are on the client's own data."
    sections.append(Section("Rebuilt models", [method], models_table(result)))
    if result.notes or result.refused:
        sections.append(Section("Notes", sentences(result)))
    sections.append(advice((one.attack for one in result.inferences), malicious=_is_malicious(result)))
    sections.append(Section("How to run it again", code=command or "leakgauge infer CAPTURES"))
    spread = [
        {"about": one.about, "attack": one.attack, "shares": {printable(name): v for name, v in one.shares.items()}}
        for one in result.inferences
    ]
    losses = {printable(name): values for name, values in result.losses.items()}
    more = {"shares": spread, "losses": losses, "notes": [printable(note) for note in result.notes]}
    write_json({**document(result), **more}, folder / "inferred.json")
    text = printable(result.sentence(), longest=1000)
    return write_page(Page("Leakgauge inference", result.verdict, text, sections), folder / "inferred.html")


def _is_malicious(result: InferredCaptures) -> bool:
    """Return whether a model was rebuilt by the attack of a malicious server."""
    names = {spec.factory.__name__ for spec in registry.specs(recovers="model") if spec.malicious}
    return any(model.method.partition("(")[0] in names for model in result.models.values())


def models_table(result: InferredCaptures, *, brief: bool = False) -> list[list[str]]:
    """Return a table of the rebuilt models, one row for each client. The first row holds the headings.

    Args:
        result: The result of the inference.
        brief: Whether the column of outcomes is left out.
    """
    compared = list(dict.fromkeys(name for losses in result.losses.values() for name in losses))
    rows = [["client", "rounds", "seconds", *(f"loss, {name}" for name in compared), *([] if brief else ["outcome"])]]
    for client, model in result.models.items():
        own = result.losses.get(client, {})
        losses = [f"{own[name]:.3g}" if name in own else "-" for name in compared]
        outcome = [] if brief else [printable(model.outcome)]
        rows.append([printable(client), str(model.rounds), f"{model.seconds:.1f}", *losses, *outcome])
    return rows


def inferences_table(result: InferredCaptures, *, brief: bool = False) -> list[list[str]]:
    """Return a table with the share of records for which each attack is right. The first row holds the headings.

    Args:
        result: The result of the inference.
        brief: Whether some columns are left out, for a narrow terminal.
    """
    rows = [HEAD]
    for one in result.inferences:
        measure, shares = one.measure, one.shares.values()
        spread = f"{min(shares):.2f} to {max(shares):.2f}"
        interval = f"{measure.low:.2f} to {measure.high:.2f}"
        row = [one.about, one.attack, f"{measure.value:.2f}", interval, f"{measure.chance:.2f}", spread]
        rows.append([printable(text) for text in (*row, str(len(shares)), str(measure.n), str(one.verdict))])
    return [[row[place] for place in BRIEF] for row in rows] if brief else rows


def sentences(result: InferredCaptures) -> list[str]:
    """Return the notes about the result, followed by sentences about captures that could not be used."""
    refused = [f"refused: {reason}" for reason in refused_sentences(result.refused)]
    return [*(printable(note, longest=1000) for note in result.notes), *refused]
