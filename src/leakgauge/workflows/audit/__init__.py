"""The audit: what a set-up gives away, in one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from leakgauge.core.container import Location
from leakgauge.evaluation.gate import Check, check, read_condition, to_junit
from leakgauge.runtime import Watch
from leakgauge.workflows.audit.first_look import Finding, Prescreen, prescreen
from leakgauge.workflows.audit.run import Audit, AuditPlan, read_audit, run_audit
from leakgauge.workflows.scenario import read_toml

__all__ = [
    "Audit",
    "AuditPlan",
    "Check",
    "Finding",
    "Prescreen",
    "audit",
    "checks_of",
    "prescreen",
    "read_audit",
    "read_condition",
    "run_audit",
    "to_junit",
]


def audit(
    config: Location | Mapping[str, Any],
    output: Location = "audit",
    *,
    fail_if: Sequence[str] = (),
    engine: str = "auto",
    jobs: int | None = 1,
    redact: Literal["none", "blur", "omit"] = "none",
    command: str = "",
    watch: Watch | None = None,
) -> Audit:
    """Audit a set-up: attack its clients, and write the page and the figures into ``output``.

    ``config`` is a TOML file, or the same as a dictionary (:mod:`leakgauge.workflows.audit.run`). Work that was done before
    is not done again; ``engine`` and ``jobs`` say where the rest runs (:mod:`leakgauge.runtime.engines`). Work that fails
    is named by ``failed`` of what is returned, which then is not ``complete``. ``fail_if`` are limits such as
    ``"recovered > 0.05"``, which :func:`checks_of` compares; ``redact`` keeps clients' samples out of the page, or
    blurs them.
    """
    from leakgauge.reports.audit import write_audit  # pictures, which not everybody wants to load

    where, document = (
        ("the configuration", config) if isinstance(config, Mapping) else (str(config), read_toml(Path(config)))
    )
    plan = read_audit(document, where)
    for text in fail_if:
        read_condition(text, list(plan.attacks))
    found = run_audit(plan, Path(output) / "store", engine=engine, jobs=jobs, watch=watch)
    if found.results:
        write_audit(found, output, command=command, redact=redact, checks=checks_of(found, fail_if))
    return found


def checks_of(found: Audit, fail_if: Sequence[str]) -> list[Check]:
    """Every limit on every attack of an audit it is about."""
    conditions = [read_condition(text, list(found.plan.attacks)) for text in fail_if]
    results = [
        (attack, f"{title}, told" if knows else title, found.figures(group))
        for (attack, title, knows), group in found.groups().items()
    ]
    return check(conditions, results)
