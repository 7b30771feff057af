"""The check of captures with the clients' own samples, before any attack (:mod:`leakgauge.evaluation.recipe_check`).

An attack that simulates a wrong recipe fails, and its failure is no evidence. A capture whose recipe does not explain
its message therefore gets no score, unless the attack recovers data all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation.recipe_check import RecipeCheck, check_recipe
from leakgauge.evaluation.verdict import Finding, Verdict, judge, worst_of
from leakgauge.runtime import Task
from leakgauge.runtime.cache import run_cached
from leakgauge.workflows.capture_results import AttackedCapture, Capture, truth_digest
from leakgauge.workflows.captures import Captures
from leakgauge.workflows.result import Running

#: The largest number of other clients whose samples are tried.
OTHERS = 8


def with_checks(captures: Captures, listed: Sequence[Capture], folder: Path | None, running: Running) -> list[Capture]:
    """Return the captures with the checks of their recipes. Captures whose samples are not given are not checked.

    Args:
        captures: The captures.
        listed: The captures to check, with the clients' own samples.
        folder: The folder of the cache.
        running: The engine and the listener of the checks.
    """
    truths = {one.client: one.truth for one in listed if one.truth is not None}
    tasks: list[Task] = []
    definitions: dict[str, dict[str, Any]] = {}
    for number, one in enumerate(listed):
        if one.truth is None:
            continue
        strangers = itertools.islice(((name, truth) for name, truth in truths.items() if name != one.client), OTHERS)
        others = dict(strangers)
        task = Task(
            f"recipe {number}, {one.file.stem}", check_file, {"file": one.file, "truth": one.truth, "others": others}
        )
        tasks.append(task)
        digests = [truth_digest(truth) for truth in (one.truth, *others.values())]
        definitions[task.name] = {**captures.definition(one.file), "recipe check": digests}
    options = {"engine": running.engine, "jobs": running.jobs, "watch": running.watch, "common": {"captures": captures}}
    checks = {task.arguments["file"]: check for task, check in run_cached(tasks, definitions, folder, **options)}
    return [replace(one, check=checks.get(one.file)) for one in listed]


def check_file(
    captures: Captures, file: Path, truth: Truth, others: Mapping[str, Truth], report: Report
) -> RecipeCheck:
    """Check whether the recipe of one capture explains its message.

    Args:
        captures: The captures that the file belongs to.
        file: The file of the observation.
        truth: The client's own samples.
        others: The samples of other clients, by name.
        report: The function that is called after each replay.
    """
    return check_recipe(captures.load(file, captures.architecture()), truth, others, report=report)


def is_unexplained(one: AttackedCapture) -> bool:
    """Return whether the recipe does not explain a capture, and the attack did not recover data either."""
    check = one.capture.check
    if check is None or check.explained is not False:
        return False
    return one.score is None or judge([one.telling]) is not Verdict.RECOVERS_DATA


def with_unexplained(finding: Finding, unexplained: Sequence[AttackedCapture]) -> Finding:
    """Return the finding on all captures, of which some are not explained by their recipes.

    Args:
        finding: The finding on the captures that have scores.
        unexplained: The captures whose recipes do not explain them.
    """
    if not unexplained:
        return finding
    verdict = worst_of([finding.verdict, Verdict.UNEXPLAINED])
    check = unexplained[0].capture.check
    assert check is not None
    more = f" {len(unexplained) - 1} further captures are not explained either." if len(unexplained) > 1 else ""
    return replace(finding, verdict=verdict, reason=f"{unexplained[0].capture.client}: {check.sentence}{more}")
