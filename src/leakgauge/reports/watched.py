"""The page about a running federation, which is replaced whenever there are new captures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakgauge.core.errors import printable
from leakgauge.evaluation.verdict import Verdict
from leakgauge.reports.findings import shared_sections
from leakgauge.reports.page import Page, Section, write_page

if TYPE_CHECKING:
    from leakgauge.workflows.attack_captures import CaptureAttack

#: One client: its name, the first round that leaks, its worst verdict, its rounds, and how many of them have a score.
Row = tuple[str, int | None, Verdict | None, Sequence[int], int]


def write_watched(result: CaptureAttack, rows: Sequence[Row], sentence: str, path: Path) -> Path:
    """Write the page, and return its path.

    Args:
        result: The result of the attack on all captures so far.
        rows: One row for each client.
        sentence: The state of the federation as a sentence.
        path: The path of the page.
    """
    table = [["client", "leaks from round", "worst verdict", "rounds captured", "rounds scored"]]
    for client, first, worst, rounds, scored in rows:
        captured = f"{len(rounds)} ({min(rounds)} to {max(rounds)})"
        verdict = "unknown: no samples for a score" if worst is None else str(worst)
        cells = (client, "-" if first is None else str(first), verdict, captured, str(scored))
        table.append([printable(text) for text in cells])
    latest = max((max(rounds) for _, _, _, rounds, _ in rows), default=0)
    sections = [
        Section("Which clients leak, from which round on", [f"The latest captured round is {latest}."], table),
        *shared_sections(result),
        Section("What the attacker sees and knows", result.attacked[0].capture.threat_model if result.attacked else ()),
        Section("Every capture", ["The page captures.html beside this one shows all captures and what came back."]),
    ]
    return write_page(Page("Leakgauge watch", result.verdict, sentence, sections), path)
