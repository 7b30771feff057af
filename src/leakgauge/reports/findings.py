"""Functions that all reports share, for tables of findings, for sections about limits and failures, and for JSON files.

A finding consists of the measures of one attack on one set-up and the verdict on these measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import leakgauge
from leakgauge.core.errors import printable
from leakgauge.core.measure import Measure
from leakgauge.core.own_files import write_own
from leakgauge.core.text import csv_text, json_text
from leakgauge.evaluation.gate import Check
from leakgauge.evaluation.metrics.registry import METRICS
from leakgauge.evaluation.verdict import Finding, Verdict
from leakgauge.reports.page import Section

if TYPE_CHECKING:
    from leakgauge.workflows.result import WorkflowResult

#: The metrics that tables show, in this order.
SHOWN = (
    "psnr", "ssim", "recovered", "features", "rows", "mse", "label_errors", "target_error", "attribute_accuracy",
    "source_accuracy",
)  # fmt: skip


def metrics_in(findings: Sequence[Finding]) -> list[str]:
    """Return the names of the metrics that at least one attack measured, in the order of the columns in tables."""
    return [name for name in SHOWN if any(name in finding.measures for finding in findings)]


def cell(measure: Measure | None) -> str:
    """Format a measure with its interval and its chance level as the text of a table cell."""
    if measure is None:
        return "-"
    interval = "" if measure.low is None else f" ({measure.interval(3)})"
    chance = "" if measure.chance is None else f", chance {measure.chance:.3g}"
    return f"{measure.value:.3g}{interval}{chance}"


def main_metric(finding: Finding) -> str | None:
    """Return the name of the metric that shows the strength of an attack, or ``None`` if there is none."""
    for name in ("psnr", "features", "attribute_accuracy", "source_accuracy", "label_errors", "target_error"):
        if name in finding.measures:
            return name
    return None


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """Return the result of the strongest attack, or ``None`` if the attacks cannot be compared.

    Attacks are compared by the first of these metrics that they have:

    - the PSNR,
    - the share of recovered features,
    - the share of inferred attributes,
    - the share of records whose owner is inferred correctly.
    """
    for name in ("psnr", "features", "attribute_accuracy", "source_accuracy"):
        having = [finding for finding in findings if name in finding.measures]
        if having:
            return max(having, key=lambda finding: finding.measures[name].value)
    return None


def brief_table(findings: Sequence[Finding], setup: str = "set-up") -> list[list[str]]:
    """Return a table of measures and verdicts for a terminal. The first row holds the headings.

    Args:
        findings: The results of attacks, each with its measures and its verdict.
        setup: The heading of the column that names what was attacked, such as "defence".
    """
    rows = [["attack", setup, "result (chance)", "n", "verdict"]]
    for finding in findings:
        name = main_metric(finding)
        row = [finding.attack, finding.title, "-", "-"]
        if name is not None:
            measure = finding.measures[name]
            chance = "" if measure.chance is None else f" ({measure.chance:.{_digits(name)}})"
            row[2:] = [f"{name} {measure.value:.{_digits(name)}}{chance}", _count(measure)]
        rows.append([*map(printable, row), str(finding.verdict)])
    return rows


def _count(measure: Measure) -> str:
    return f"{measure.n} {measure.of[:-1] if measure.n == 1 else measure.of}"


def _digits(metric: str) -> str:
    return "1f" if METRICS[metric].unit == "dB" else "3g"


def shared_sections(result: WorkflowResult) -> list[Section]:
    """Return a section about failed tasks and a section about limits. A section without content is left out."""
    sections = []
    if result.failed is not None:
        named = [f"{name}: {reason}" for name, reason in result.failed.failures.items()]
        sections.append(Section("What could not be done", [*named, "Nothing is known about these. They may leak."]))
    if result.checks:
        sections.append(Section("Limits", [limit(one) for one in result.checks]))
    return sections


def controls_section(controls: Sequence[Finding]) -> list[Section]:
    """Return a section about the positive controls, or nothing if there are none.

    Args:
        controls: The results of the attacks on easier versions of the set-up.
    """
    if not controls:
        return []
    rows = [["attack", "easier version", "result", "clients", "control"]]
    for finding in controls:
        passed = finding.verdict is Verdict.RECOVERS_DATA
        outcome = "passed: recovers data" if passed else "failed: recovers no samples"
        metric = main_metric(finding)
        result = "-" if metric is None else f"{metric} {cell(finding.measures[metric])}"
        clients = "-" if metric is None else str(finding.measures[metric].n)
        rows.append([finding.attack, finding.setup, result, clients, outcome])
    words = (
        "The same attacks, on easier versions of this set-up without a defence. An attack that recovers nothing here "
        "either is too weak to support a negative verdict."
    )
    return [Section("Positive controls", (words,), table=rows)]


def limit(check: Check) -> str:
    """Return a sentence about a limit that the user set. It begins with "BROKEN" or "kept"."""
    return ("BROKEN: " if check.failed else "kept: ") + check.sentence()


def document(result: WorkflowResult) -> dict[str, Any]:
    """Convert the result of any command to a dictionary of plain values, for its JSON file."""
    return {
        "leakgauge": leakgauge.__version__,
        "verdict": str(result.verdict),
        "leaks": result.verdict.leaks,
        "sentence": result.verdict.sentence,
        "complete": result.complete,
        "failed": {} if result.failed is None else dict(result.failed.failures),
        "refused": list(result.refused),
        "findings": [plain_finding(finding) for finding in result.findings],
        "checks": [
            {"condition": str(one.condition), "failed": one.failed, "sentence": one.sentence()} for one in result.checks
        ],
    }


def plain_finding(finding: Finding) -> dict[str, Any]:
    """Convert the result of an attack to a dictionary of plain values, for a JSON file."""
    return {
        "attack": finding.attack,
        "setup": finding.setup,
        "knows_defence": finding.knows_defence,
        "verdict": str(finding.verdict),
        "reason": finding.reason,
        "measures": {name: measure.to_row() for name, measure in finding.measures.items()},
    }


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a dictionary to a JSON file, completely or not at all."""
    write_own(path, json_text(content, indent=1).encode())


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows to a CSV file, completely or not at all.

    The keys of the first row are the names of the columns.
    """
    columns = list(rows[0]) if rows else ["attack"]
    write_own(path, csv_text([columns, *([row[name] for name in columns] for row in rows)]).encode())
