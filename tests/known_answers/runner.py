"""Functions that run one known answer through the real audit, and compare the verdict with the right verdicts."""

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leakgauge.core.errors import LeakgaugeError
from leakgauge.evaluation.verdict import Finding, Verdict
from leakgauge.workflows.audit import Audit, read_audit, run_audit
from leakgauge.workflows.result import Running
from tests.known_answers.known_answer import KnownAnswer

Status = Literal["right", "false safe", "false leak", "inconclusive", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The verdict of one audit beside the known answer.

    Args:
        answer: The known answer.
        verdict: The verdict of the audit, or ``None`` if the audit raised an error.
        reason: The figures behind the verdict, or the error, in one line.
        seconds: The CPU seconds of the attacks that were run now. Attacks from the cache cost nothing.
        failures: The tasks that failed, with their errors.
    """

    answer: KnownAnswer
    verdict: Verdict | None
    reason: str
    seconds: float
    failures: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """The verdict in comparison with the right verdicts."""
        if self.verdict is None or self.failures or self.verdict is Verdict.NOT_SCORED:
            return "failed"
        if self.verdict in self.answer.right:
            return "right"
        if self.verdict is Verdict.INCONCLUSIVE:
            return "inconclusive"
        order = list(Verdict)
        mildest = max(order.index(verdict) for verdict in self.answer.right)
        return "false safe" if order.index(self.verdict) > mildest else "false leak"


def run(answer: KnownAnswer, folder: Path, *, short: bool, clients: int | None = None, jobs: int = 1) -> Outcome:
    """Audit the set-up of a known answer.

    Args:
        answer: The known answer.
        folder: The folder of the cache.
        short: Whether to run the short form.
        clients: The number of clients of the long form. By default, that of an audit.
        jobs: The number of attacks that run at a time.
    """
    began = time.process_time()
    running = Running("in-process" if jobs == 1 else "auto", jobs)
    try:
        audit = run_audit(read_audit(answer.document(short=short, clients=clients), answer.name), folder, running)
    except LeakgaugeError as problem:
        return Outcome(answer, None, f"{type(problem).__name__}: {problem}", time.process_time() - began)
    except Exception:
        lines = traceback.format_exc().strip().splitlines()
        return Outcome(answer, None, f"crash: {lines[-1]} ({lines[-3].strip()})", time.process_time() - began)
    if audit.failed is None and not audit.complete:
        raise KeyboardInterrupt  # an audit keeps what it has when it is interrupted, and half of it is no verdict
    failures = () if audit.failed is None else tuple(str(audit.failed).splitlines())
    return Outcome(answer, audit.verdict, "; ".join(_figures(audit)), time.process_time() - began, failures)


def _figures(audit: Audit) -> Iterator[str]:
    """Yield the figures of each attack, and of the positive controls of attacks that found nothing."""
    for finding in audit.findings:
        yield f"{finding.attack}{' (defence known)' * finding.knows_defence} {_figure(finding)}"
        if finding.verdict in (Verdict.INCONCLUSIVE, Verdict.NOTHING_ABOVE_CHANCE):
            controls = [_figure(one) for one in audit.controls if one.attack == finding.attack]
            yield f"its controls {', '.join(controls) or 'none'}"


def _figure(finding: Finding) -> str:
    words = [
        f"{name} {measure.value:.3g} against {'none' if measure.chance is None else f'{measure.chance:.3g}'}"
        for name, measure in finding.measures.items()
        if name in ("psnr", "features", "label_errors", "target_error", "attribute_accuracy")
    ]
    return f"[{', '.join(words)}]"
