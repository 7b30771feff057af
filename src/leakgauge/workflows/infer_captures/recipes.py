"""The check of the recipes of captures with many rounds, before anything is concluded from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.truth import Truth
from leakgauge.evaluation.recipe_check import RecipeCheck, check_recipe
from leakgauge.evaluation.verdict import Finding, Verdict, worst_of
from leakgauge.workflows.captures import TruthSource

#: The largest number of clients whose recipes are checked, and of replays of each.
MOST_CLIENTS, MOST_REPLAYS = 20, 60


def check_recipes(
    data: TruthSource,
    rounds: Mapping[str, Sequence[Observation]],
    files: Mapping[str, Sequence[Path]],
    truths: Mapping[str, Truth],
) -> dict[str, RecipeCheck]:
    """Check whether the recipes explain the first captured message of each client.

    Args:
        data: The source of the clients' own samples.
        rounds: The observations of each client.
        files: The files of these observations.
        truths: The samples of each client.
    """
    checks = {}
    for name in islice(truths, MOST_CLIENTS):
        try:
            truth = data.truth(rounds[name][0], files[name][:1])
        except InvalidInput:
            continue
        if truth is not None:
            others = {other: one for other, one in truths.items() if other != name}
            checks[name] = check_recipe(rounds[name][0], truth, dict(islice(others.items(), 4)), most=MOST_REPLAYS)
    return checks


def sentences_of(checks: Mapping[str, RecipeCheck]) -> list[str]:
    """Return sentences about checked recipes, which name those that do not explain a message.

    Args:
        checks: The check of each client.
    """
    right = {name: check for name, check in checks.items() if check.explained}
    found = [f"{name}: {check.sentence}" for name, check in checks.items() if not check.explained]
    if right:
        largest = max(check.residual for check in right.values())
        clients = "one client" if len(right) == 1 else f"{len(right)} clients"
        found.append(f"The recipe explains the message of {clients} (relative distance of at most {largest:.2g}).")
    return found


def with_checks(findings: Sequence[Finding], checks: Mapping[str, RecipeCheck]) -> tuple[Finding, ...]:
    """Return findings, in which what does not leak has no verdict if a recipe does not explain a message.

    Args:
        findings: The findings on all clients together.
        checks: The check of each client.
    """
    wrong = {name: check for name, check in checks.items() if check.explained is False}
    if not wrong:
        return tuple(findings)
    name, check = next(iter(wrong.items()))
    more = f" {len(wrong) - 1} further clients are not explained either." if len(wrong) > 1 else ""
    reason = f"{name}: {check.sentence}{more}"
    return tuple(
        replace(one, verdict=worst_of([one.verdict, Verdict.UNEXPLAINED]), reason=one.reason or reason)
        for one in findings
    )
