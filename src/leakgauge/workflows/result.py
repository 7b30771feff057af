"""The result of a workflow: findings, limits, and an exit code, the same for every command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args

from leakgauge.core.container import Location, write_atomically
from leakgauge.core.errors import InvalidInput, TasksFailed, UnknownName
from leakgauge.evaluation.gate import Check, Condition, check, to_junit
from leakgauge.evaluation.verdict import Finding, Verdict, worst_of
from leakgauge.runtime import Watch, check_engine

#: How clients' samples appear on a page: as they are, as coarse blocks, or not at all.
Redact = Literal["none", "blur", "omit"]


@dataclass(frozen=True)
class Running:
    """The place where the work of a workflow runs.

    Args:
        engine: ``"auto"``, ``"in-process"``, ``"processes"``, ``"ray"`` or ``"ray:ADDRESS"``.
        jobs: The number of tasks that run at a time. By default, one per core.
        device: The device of the attacks, such as ``"cuda"``. ``None`` is that of the message.
        watch: The listener that follows the tasks.
    """

    engine: str = "auto"
    jobs: int | None = None
    device: str | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        check_engine(self.engine, self.jobs)
        check_device(self.device)


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkflowResult:
    """The part of a result that all workflows share.

    Args:
        findings: One finding for each attack and set-up.
        complete: Whether all work is finished.
        failed: The tasks that failed, with their errors.
        refused: The inputs that were refused, in sentences.
        checks: The limits, compared with the findings.
        page: The page for people.
    """

    findings: tuple[Finding, ...] = ()
    complete: bool = True
    failed: TasksFailed | None = None
    refused: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    page: Path | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on all findings: the worst of them."""
        return worst_of(finding.verdict for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0, 1 (a limit is broken), 2 (refused), 3 (failed) or 130 (interrupted)."""
        if any(one.failed for one in self.checks):
            return 1
        if self.failed is not None:
            return 3
        if not self.complete:
            return 130
        return 2 if self.refused else 0


Result = TypeVar("Result", bound=WorkflowResult)


def conclude(
    result: Result,
    conditions: Sequence[Condition],
    junit: Location | None,
    write: Callable[[Result], Path],
) -> Result:
    """Compare the limits with the findings, and write the page and the JUnit file.

    Args:
        result: The result of the workflow.
        conditions: The limits.
        junit: The file for the limits as JUnit XML, if any.
        write: The function that writes the page and returns its path.
    """
    result = replace(result, checks=tuple(check(conditions, result.findings)))
    if junit is not None:
        write_atomically(Path(junit), to_junit(result.checks))
    return replace(result, page=write(result))


def check_redact(redact: str) -> None:
    """Refuse an unknown way to redact."""
    if redact not in get_args(Redact):
        raise UnknownName("way to redact", redact, get_args(Redact))


def check_device(device: str | None) -> None:
    """Refuse a device that torch cannot use."""
    if device is None:
        return
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise InvalidInput(f"cannot compute on {device!r}: {str(problem).splitlines()[0]}") from problem
