"""What was inferred, as tables, as one page for people, and as JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

from leakgauge.core.container import Location, write_atomically
from leakgauge.core.errors import printable
from leakgauge.reports import Page, Section, write_page
from leakgauge.workflows.attack_captures import SHOWN
from leakgauge.workflows.infer_captures.inferences import HEAD, WORDS
from leakgauge.workflows.infer_captures.run import MODELS, Inferred


def models_table(found: Inferred, *, brief: bool = False) -> list[list[str]]:
    """The rebuilt models as a table, its head first; unless ``brief``, with what each method says of its model."""
    fitted = [name for name in MODELS if any(name in fits for fits in found.fits.values())]
    rows = [["client", "rounds", "seconds", *(f"loss, {name}" for name in fitted), *([] if brief else ["outcome"])]]
    for name, model in found.models.items():
        losses = [f"{found.fits[name][one]:.3g}" if one in found.fits.get(name, {}) else "-" for one in fitted]
        said = [] if brief else [printable(model.outcome)]
        rows.append([printable(name), str(model.rounds), f"{model.seconds:.1f}", *losses, *said])
    return rows


def figures_table(found: Inferred, *, brief: bool = False) -> list[list[str]]:
    """What each attack has right as a table, its head first; ``brief`` fits into a narrow terminal."""
    rows = [HEAD, *([printable(cell) for cell in one.to_row()] for one in found.figures)]
    return [row[:5] for row in rows] if brief else rows


def sentences(found: Inferred) -> list[str]:
    """What is to be said of the figures, and then of what was refused."""
    refused = [f"refused: {printable(one)}" for one in found.refused[:SHOWN]]
    more = [f"and {len(found.refused) - SHOWN} more were refused"] if len(found.refused) > SHOWN else []
    return [*(printable(note) for note in found.notes), *refused, *more]


def write_inferred(found: Inferred, output: Location, command: str) -> Path:
    """The page, and the figures as JSON beside it."""
    verdict, leaks = found.verdict()
    verdict = printable(verdict, longest=1000)
    sections = [Section("What the attacker sees and knows", [printable(one) for one in found.threat_model])]
    if found.figures:
        used = dict.fromkeys(one.attack for one in found.figures)
        words = [*(f"{name}: {WORDS[name]}" for name in used), "Shares are of all records together."]
        sections.append(Section("What the messages tell of the records", words, figures_table(found)))
    method = f"Method: {next(iter(found.models.values())).method}; losses are on the client's own data."
    sections.append(Section("Rebuilt models", [method], models_table(found)))
    if found.notes or found.refused:
        sections.append(Section("To be read with it", sentences(found)))
    sections.append(Section("To do it again", code=command))
    document = {
        "verdict": verdict,
        "leaks": leaks,
        "figures": [
            {"what": one.what, "attack": one.attack, "right": one.right.mean, "low": one.right.low,
             "high": one.right.high, "guess": one.chance, "above_guess": one.above_chance, "least": one.least,
             "most": one.most, "clients": one.clients, "records": one.records}
            for one in found.figures
        ],
        "losses": found.fits,
        "notes": found.notes,
        "refused": found.refused,
    }  # fmt: skip
    write_atomically(Path(output) / "inferred.json", json.dumps(document, indent=1).encode())
    return write_page(Page("Many rounds, together", verdict, leaks, sections), Path(output) / "inferred.html")
