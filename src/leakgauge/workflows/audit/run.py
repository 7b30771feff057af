"""Attack the clients of a plan with several attacks, with and without defences. Finished work is cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leakgauge.core.container import Location
from leakgauge.core.errors import TasksFailed
from leakgauge.core.measure import Measure
from leakgauge.core.progress import Report
from leakgauge.evaluation.verdict import Finding, Verdict, judge, over_clients, worst_of
from leakgauge.runtime import Task, run_tasks
from leakgauge.runtime.cache import Cache
from leakgauge.workflows.audit.attackers import Scored, Trial, measures_of
from leakgauge.workflows.audit.plan import AuditPlan, Work
from leakgauge.workflows.result import Running, WorkflowResult


@dataclass(frozen=True, eq=False)
class ClientResult:
    """The result of one attack on one client.

    Args:
        work: The attack and the client.
        document: The figures and words, as plain values.
        tensors: The samples that they are about.
    """

    work: Work
    document: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def measures(self) -> dict[str, Measure]:
        """The figures by metric."""
        return measures_of(self.document)


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit(WorkflowResult):
    """All results of an audit.

    Args:
        plan: The plan.
        results: The result of each attack on each client.
    """

    plan: AuditPlan
    results: tuple[ClientResult, ...]

    @property
    def tried(self) -> list[str]:
        """The titles of the defences that have a result."""
        titles = {result.work.defence for result in self.results}
        return [title for title in self.plan.chains if title in titles]

    def verdict_on(self, defence: str) -> Verdict:
        """Return the verdict of all attacks on one defence."""
        return worst_of(finding.verdict for finding in self.findings if finding.setup == defence)

    def results_of(self, finding: Finding) -> list[ClientResult]:
        """Return the results of single clients that a finding is about."""
        key = (finding.attack, finding.setup, finding.knows_defence)
        return [one for one in self.results if _key(one.work) == key]


def run_audit(
    plan: AuditPlan, folder: Location, running: Running | None = None, *, stop_after: int | None = None
) -> Audit:
    """Do what is not done yet, one task for each client and attack, and return all results.

    Finished work is cached at once. Ctrl-C, or the end of the process, loses at most the tasks that run.

    Args:
        plan: The audit to be made.
        folder: The folder of the cache.
        running: The place where the tasks run. Any engine continues the work of another.
        stop_after: The number of new results after which to stop.
    """
    running = running or Running()
    cache = Cache(folder)
    missing = [work for work in plan.work if plan.definition(work) not in cache]
    tasks = [Task(str(work), attack_client, {"work": work}, kind=work.attack) for work in missing]
    common = {"plan": plan, "device": running.device}
    failed = None
    try:
        results = run_tasks(tasks, engine=running.engine, jobs=running.jobs, watch=running.watch, common=common)
        for number, (task, (document, tensors)) in enumerate(results, 1):
            cache.put(plan.definition(task.arguments["work"]), document, tensors)
            if number == stop_after:
                break
    except TasksFailed as problem:
        failed = problem
    except KeyboardInterrupt:
        pass  # the results so far are cached, and the audit is marked as incomplete
    finished = tuple(_finished(cache, plan))
    return Audit(
        plan=plan,
        results=finished,
        findings=tuple(_findings(plan, finished)),
        complete=len(finished) == len(plan.work),
        failed=failed,
    )


def _finished(cache: Cache, plan: AuditPlan) -> Iterator[ClientResult]:
    for work in plan.work:
        entry = cache.get(plan.definition(work))
        if entry is not None:
            yield ClientResult(work, entry.document, entry.tensors)


def _key(work: Work) -> tuple[str, str, bool]:
    return work.attack, work.defence, work.knows_defence


def _findings(plan: AuditPlan, results: Sequence[ClientResult]) -> Iterator[Finding]:
    """Group the results by attack, defence and knowledge, in the order of the work."""
    for key in dict.fromkeys(_key(result.work) for result in results):
        scores = [result.measures for result in results if _key(result.work) == key]
        verdict = judge(scores, labels_granted=plan.scenario.labels_granted)
        attack, defence, knows_defence = key
        yield Finding(attack, defence, over_clients(scores), verdict, knows_defence)


def attack_client(plan: AuditPlan, work: Work, report: Report, device: str | None = None) -> Scored:
    """Attack one client and score the result.

    Args:
        plan: The audit.
        work: The attack and the client.
        report: The listener that follows the steps.
        device: The device of the attack.
    """
    chain = plan.chains[work.defence]
    observation, truth = plan.scenario.observe(work.client, chain, knows_defence=work.knows_defence)
    trial = Trial(observation, truth, plan.scenario.seed + work.client, plan.threshold, device)
    return plan.attacks[work.attack](trial, report)
