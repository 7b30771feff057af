"""The audit of a federated set-up, which attacks its clients and reports how much of their data was recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakgauge.core.container import Location
from leakgauge.core.own_files import check_output
from leakgauge.evaluation.gate import read_condition
from leakgauge.runtime import Watch
from leakgauge.workflows.audit.budget import read_duration
from leakgauge.workflows.audit.first_look import FirstLook, Reason, first_look
from leakgauge.workflows.audit.plan import AuditPlan, read_audit
from leakgauge.workflows.audit.run import Audit, run_audit
from leakgauge.workflows.documents import read_config
from leakgauge.workflows.forget import forget_files
from leakgauge.workflows.public_samples import with_public
from leakgauge.workflows.result import Redact, Running, check_redact, conclude, measuring

__all__ = ["FILES", "Audit", "AuditPlan", "FirstLook", "Reason", "audit", "first_look", "read_audit", "run_audit"]

#: The files of results, beside the cache.
FILES = ("audit.html", "audit.json", "results.csv")


@measuring()
def audit(  # noqa: PLR0913
    config: Location | Mapping[str, Any] | AuditPlan,
    output: Location = "audit",
    *,
    fail_if: Sequence[str] = (),
    junit: Location | None = None,
    redact: Redact = "none",
    engine: str = "auto",
    jobs: int | None = None,
    device: str | None = None,
    budget: float | str | None = None,
    public: int | str | None = None,
    watch: Watch | None = None,
    command: str = "",
) -> Audit:
    """Attack the clients of a federated set-up, and write a report page and the figures.

    The command ``leakgauge audit`` calls this function. Attacks that were finished before are not run again. If attacks
    fail, the attribute ``failed`` of the result lists these attacks, and the attribute ``complete`` is false.

    Args:
        config: A TOML file, a dictionary with the same content, or a plan (:mod:`leakgauge.workflows.audit.plan`).
        output: The folder for the report page, the figures and the cache.
        fail_if: The conditions under which the audit fails, such as ``"recovered > 0.05"``
            (:mod:`leakgauge.evaluation.gate`).
        junit: The file to which the results of these conditions are written as JUnit XML.
        redact: ``"none"`` shows clients' samples on the page. ``"omit"`` leaves them out, stores none of them, and
            removes those that earlier runs stored in the folder.
        engine: The engine that runs the attacks (:mod:`leakgauge.runtime.engines`).
        jobs: The number of attacks that run at a time. By default, one per core.
        device: The device of the attacks, such as ``"cuda"``.
        budget: The time that the audit may take, in seconds or as a text such as ``"10m"``. ``"none"`` sets no limit.
            The default is the value in the configuration, or 4 minutes for each defence if the configuration names no
            attacks.
        public: The public data of the attacker, as ``[attacker] public`` in the configuration
            (:mod:`leakgauge.workflows.public_samples`). The default is the value in the configuration, or samples of
            the data that no client holds.
        watch: The listener that receives the progress of the attacks.
        command: The command line, which the report page shows.
    """
    from leakgauge.reports.audit import write_audit  # loads the drawing libraries

    check_redact(redact)
    check_output(output, FILES, junit)
    running = Running(engine, jobs, device, watch)
    plan = config if isinstance(config, AuditPlan) else read_audit(*with_public(read_config(config), public))
    if budget is not None:
        plan = replace(plan, budget=read_duration(budget, "the budget"))
    conditions = [read_condition(text, list(plan.attacks)) for text in fail_if]
    if redact == "omit":
        forget_files(Path(output))
    result = run_audit(plan, Path(output) / "cache", running, samples=redact != "omit")
    if not result.results:
        if result.failed is not None:
            raise result.failed
        return result
    return conclude(result, conditions, junit, lambda one: write_audit(one, output, command=command, redact=redact))
