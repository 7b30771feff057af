"""Functions that run the attacks of an audit, with and without defences. Finished work is cached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from leakgauge.core.container import Location
from leakgauge.core.errors import TasksFailed
from leakgauge.core.measure import Measure
from leakgauge.core.progress import Report
from leakgauge.evaluation.verdict import Finding, Verdict, judge, over_clients, together, worst_of
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
        document: The figures and texts of the result, as plain values.
        tensors: The original and the reconstructed samples, and other tensors of the result.
    """

    work: Work
    document: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def measures(self) -> dict[str, Measure]:
        """A dictionary from metrics to measures."""
        return measures_of(self.document)


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit(WorkflowResult):
    """All results of an audit.

    Args:
        plan: The plan of the audit.
        results: The result of each attack on each client. Results on positive controls are not included.
        controls: The findings on the positive controls, which are easier versions of the set-up.
    """

    plan: AuditPlan
    results: tuple[ClientResult, ...]
    controls: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of the verdicts on all defences."""
        return worst_of(self.verdict_on(title) for title in self.tried)

    @property
    def tried(self) -> list[str]:
        """The titles of the defences that have a result."""
        titles = {result.work.defence for result in self.results}
        return [title for title in self.plan.chains if title in titles]

    def verdict_on(self, defence: str) -> Verdict:
        """Return the verdict on one defence, from the findings of all attacks."""
        return together([finding for finding in self.findings if finding.setup == defence])

    def results_of(self, finding: Finding) -> list[ClientResult]:
        """Return the results that a finding summarises, one for each client."""
        key = (finding.attack, finding.setup, finding.knows_defence)
        return [one for one in self.results if _key(one.work) == key]


def run_audit(
    plan: AuditPlan, folder: Location, running: Running | None = None, *, stop_after: int | None = None
) -> Audit:
    """Run the attacks that are not finished yet, and return all results.

    The result of each task is cached at once. If the audit is interrupted, only the tasks that are running at that time
    are lost.

    Args:
        plan: The plan of the audit.
        folder: The folder of the cache.
        running: The engine, the device and the listener of the tasks. An audit can be continued with another engine.
        stop_after: The number of new results after which the audit stops. By default, all attacks are run.
    """
    running = running or Running()
    cache = Cache(folder)
    missing = [work for work in plan.work if plan.definition(work) not in cache]
    tasks = [Task(str(work), attack_client, {"work": work}, kind=work.attack) for work in missing]
    common = {"plan": plan, "device": running.device}
    failed = None
    try:
        running_tasks = run_tasks(tasks, engine=running.engine, jobs=running.jobs, watch=running.watch, common=common)
        for number, (task, (document, tensors)) in enumerate(running_tasks, 1):
            cache.put(plan.definition(task.arguments["work"]), document, tensors)
            if number == stop_after:
                break
    except TasksFailed as problem:
        failed = problem
    except KeyboardInterrupt:
        pass  # the results so far are cached, and the audit is marked as incomplete
    finished = list(_finished(cache, plan))
    results = [result for result in finished if not result.work.control]
    controls = list(_controls(result for result in finished if result.work.control))
    return Audit(
        plan=plan,
        results=tuple(results),
        findings=tuple(_findings(plan, results, controls)),
        controls=tuple(controls),
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


def _findings(plan: AuditPlan, results: Sequence[ClientResult], controls: Sequence[Finding]) -> Iterator[Finding]:
    """Yield one finding for each combination of attack, defence and knowledge of the defence, in the order of the work.

    The verdict "nothing above chance" becomes "inconclusive" in two cases: the attack recovers nothing anywhere, not
    even on a positive control, or the attack returned no samples.
    """
    found = []
    for key in dict.fromkeys(_key(result.work) for result in results):
        scores = [result.measures for result in results if _key(result.work) == key]
        verdict = judge(scores, labels_granted=plan.scenario.labels_granted)
        attack, defence, knows_defence = key
        found.append(Finding(attack, defence, over_clients(scores), verdict, knows_defence))
    strong = {one.attack for one in (*controls, *found) if one.verdict is Verdict.RECOVERS_DATA}
    for finding in found:
        weak = finding.about_samples and (finding.attack not in strong or finding.returned_nothing)
        unsupported = finding.verdict is Verdict.NOTHING_ABOVE_CHANCE and weak
        yield replace(finding, verdict=Verdict.INCONCLUSIVE) if unsupported else finding


def _controls(results: Iterable[ClientResult]) -> Iterator[Finding]:
    """Yield one finding for each attack and each positive control."""
    groups: dict[tuple[str, str], list[dict[str, Measure]]] = {}
    for result in results:
        groups.setdefault((result.work.attack, result.work.control), []).append(result.measures)
    for (attack, control), scores in groups.items():
        yield Finding(attack, control, over_clients(scores), judge(scores, labels_granted=True))


def attack_client(plan: AuditPlan, work: Work, report: Report, device: str | None = None) -> Scored:
    """Attack one client, and score the result.

    Args:
        plan: The plan of the audit.
        work: The attack and the client.
        report: The function that is called after each step.
        device: The device of the attack.
    """
    scenario = plan.scenario_of(work)
    observation, truth = scenario.observe(work.client, plan.chain_of(work), knows_defence=work.knows_defence)
    trial = Trial(observation, truth, scenario.seed + work.client, plan.threshold, device)
    return plan.attacks[work.attack](trial, report)
