"""The result of a workflow, which all commands return.

It holds the results of the attacks, the checked conditions and an exit code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args

from leakgauge.attacks.base import Reconstruction
from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, LeakgaugeError, TasksFailed, UnknownName
from leakgauge.core.exits import no_exit
from leakgauge.core.own_files import JUNIT, write_own
from leakgauge.evaluation.gate import Check, Condition, check, to_junit
from leakgauge.evaluation.verdict import Finding, Verdict, worst_of
from leakgauge.runtime import Watch, check_engine
from leakgauge.runtime.threads import one_thread

#: Whether clients' samples are shown and stored, or left out everywhere.
Redact = Literal["none", "omit"]


@contextmanager
def measuring() -> Iterator[None]:
    """Measure with one thread inside the ``with`` block, and turn an exit of the user's code into an error."""
    with no_exit(), one_thread():
        yield


@dataclass(frozen=True)
class Running:
    """The engine, the number of jobs and the device of a workflow.

    Args:
        engine: The engine, which is ``"auto"``, ``"in-process"``, ``"processes"``, ``"ray"`` or ``"ray:ADDRESS"``.
        jobs: The number of tasks that run at a time. By default, one per core.
        device: The device of the attacks, such as ``"cuda"``. The default is the device of the message.
        watch: The listener that receives the progress of the tasks.
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
    """The base class of the results of workflows.

    Args:
        findings: One result for each attack and set-up, with its measures and its verdict.
        complete: Whether all tasks are finished.
        failed: The tasks that failed, with their errors.
        refused: One sentence about each refused input.
        checks: The results of the conditions under which the command fails.
        page: The path of the report page.
    """

    findings: tuple[Finding, ...] = ()
    complete: bool = True
    failed: TasksFailed | None = None
    refused: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    page: Path | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict with the most leakage among the verdicts on all attacks."""
        return worst_of(finding.verdict for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """The exit code of the command.

        It is 0 (success), 1 (a limit is broken or was not measured), 2 (an input was refused), 3 (a task failed) or 130
        (interrupted).
        """
        if any(one.broken for one in self.checks):
            return 1
        if self.failed is not None:
            return 3
        if not self.complete:
            return 130
        if self.refused:
            return 2
        return 1 if any(one.failed for one in self.checks) else 0

    @property
    def clients(self) -> dict[str, int]:
        """A dictionary from the title of each set-up that a limit must be measured on to the number of its clients."""
        return {}

    def check(self, conditions: Sequence[Condition]) -> list[Check]:
        """Compare conditions with the findings, and return the checks (:func:`leakgauge.evaluation.gate.check`)."""
        return check(conditions, self.findings, self.clients)


Result = TypeVar("Result", bound=WorkflowResult)


def conclude(
    result: Result,
    conditions: Sequence[Condition],
    junit: Location | None,
    write: Callable[[Result], Path],
) -> Result:
    """Check the conditions, write the report page and the JUnit file, and return the completed result.

    Args:
        result: The result of the workflow.
        conditions: The conditions under which the command fails.
        junit: The file to which the results of these conditions are written as JUnit XML. By default, there is no such
            file.
        write: The function that writes the page and returns its path.
    """
    result = replace(result, checks=tuple(result.check(conditions)))
    if junit is not None:
        write_own(Path(junit), to_junit(result.checks), JUNIT)
    return replace(result, page=write(result))


def check_measured(result: Reconstruction) -> None:
    """Raise an error if an attack never had a finite loss, so that its result shows nothing about the message."""
    if result.outcome.kind == "diverged" and not math.isfinite(result.loss):
        raise LeakgaugeError(
            f"the loss of the attack was never a finite number ({result.outcome}), so nothing was measured. Check that "
            "the model's outputs and gradients are finite"
        )


def check_redact(redact: str) -> None:
    """Raise an error if ``redact`` is not one of the values ``"none"`` and ``"omit"``."""
    if redact == "blur":
        raise InvalidInput(
            "--redact blur was removed, because blurred samples can still be recognised (the mean brightness of a face "
            "names the person five times as often as chance). Use --redact omit"
        )
    if redact not in get_args(Redact):
        raise UnknownName("way to redact", redact, get_args(Redact))


def check_device(device: str | None) -> None:
    """Raise an error if torch cannot use the device."""
    if device is None:
        return
    import torch

    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
        if chosen.type == "meta" or (chosen.type == "cpu" and chosen.index):
            raise RuntimeError("there is no such device with values")
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise InvalidInput(f"cannot compute on {device!r}: {str(problem).splitlines()[0]}") from problem
