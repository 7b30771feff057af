"""The stages in which the attacks of an audit run. Finished attacks are cached.

1. Exact attacks run first, because they take seconds and recognise their own success.
2. The other attacks run on the clients whose samples the exact attacks have not recovered.
3. Attacks that found nothing and whose loss was still falling get more steps, if the budget has time.
4. Attacks that found nothing run on easier versions of the set-up, which are called positive controls.
5. The strongest attack runs on harder and easier versions of the set-up (:mod:`leakgauge.workflows.audit.ladder`), if
   the budget has time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from leakgauge.core.container import Location
from leakgauge.core.errors import EngineUnavailable, LeakgaugeError, TasksFailed
from leakgauge.core.measure import Measure
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive
from leakgauge.evaluation.bounds import supports_nothing_found
from leakgauge.evaluation.support import ONE_SAMPLE, Evidence, with_support
from leakgauge.evaluation.verdict import Finding, Verdict, judge, over_clients, together, worst_of
from leakgauge.runtime import Task, run_tasks
from leakgauge.runtime.cache import Cache
from leakgauge.runtime.processes import usable_cores
from leakgauge.workflows.audit.attackers import SAMPLES, Scored, Trial, measures_of
from leakgauge.workflows.audit.budget import Forecast, forecast
from leakgauge.workflows.audit.ladder import sentences, strongest_attack
from leakgauge.workflows.audit.plan import UNDEFENDED, AuditPlan, Work
from leakgauge.workflows.result import Running, WorkflowResult


@dataclass(frozen=True, eq=False)
class ClientResult:
    """The result of one attack on one client.

    Args:
        work: The attack and the client.
        document: The numbers and texts of the result, as plain values.
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
        results: The result of each attack on each client. Results on positive controls are not included. If an attack
            was repeated, only the attempt with the lowest loss is included.
        controls: The results on the positive controls, which are easier versions of the set-up.
        ladder: The results of the strongest attack on versions of the set-up with one changed value
            (:mod:`leakgauge.workflows.audit.ladder`).
        forecast: The expected cost of the audit.
    """

    plan: AuditPlan
    results: tuple[ClientResult, ...]
    controls: tuple[Finding, ...] = ()
    ladder: tuple[Finding, ...] = ()
    forecast: Forecast | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict with the most leakage among the verdicts on all defences."""
        return worst_of(self.verdict_on(title) for title in self.tried)

    @property
    def clients(self) -> dict[str, int]:
        """A dictionary from the title of each defence to the number of attacked clients."""
        return dict.fromkeys(self.plan.chains, self.plan.clients)

    @property
    def tried(self) -> list[str]:
        """The titles of the defences for which at least one attack has a result."""
        titles = {result.work.defence for result in self.results}
        return [title for title in self.plan.chains if title in titles]

    def verdict_on(self, defence: str) -> Verdict:
        """Return the verdict on one defence, from the results of all attacks."""
        return together([finding for finding in self.findings if finding.setup == defence])

    def reason_for(self, defence: str) -> str:
        """Return the reason for the verdict on one defence, or an empty text if there is no reason to report."""
        verdict = self.verdict_on(defence)
        reasons = [one.reason for one in self.findings if one.setup == defence and one.verdict is verdict]
        return next((reason for reason in reasons if reason), "")

    @property
    def ladder_sentences(self) -> list[str]:
        """Sentences about how many samples, how many local steps and how much noise still allow a successful attack."""
        return sentences(self.plan.ladder, self.ladder)

    def results_of(self, finding: Finding) -> list[ClientResult]:
        """Return the results that a finding summarises, one for each client."""
        key = (finding.attack, finding.setup, finding.knows_defence)
        return [one for one in self.results if _key(one.work) == key]


def run_audit(
    plan: AuditPlan,
    folder: Location,
    running: Running | None = None,
    *,
    stop_after: int | None = None,
    samples: bool = True,
) -> Audit:
    """Run the attacks that are not finished yet, and return all results.

    The result of each task is cached at once. If the audit is interrupted, only the tasks that are running at that time
    are lost.

    Args:
        plan: The plan of the audit.
        folder: The folder of the cache.
        running: The engine, the device and the listener of the tasks. An audit can be continued with another engine.
        stop_after: The number of new results after which the audit stops. By default, all attacks are run.
        samples: Whether clients' samples are stored in the cache. If it is false, those of earlier runs are removed.
    """
    run = _Run(plan, Cache(folder, samples=samples), running or Running(), stop_after)
    run.stage([work for work in plan.work if plan.is_exact(work.attack)])
    run.stage([work for work in plan.work if not plan.is_exact(work.attack) and not run.is_settled(work)])
    run.stage(run.further_attempts())
    run.stage([work for name in run.unsuccessful() for work in plan.controls_of(name)])
    results = run.best_results()
    controls = run.findings_on(plan.controls)
    run.stage(run.climb([*_judged(plan, results), *controls]))
    if not results and isinstance(run.problem, LeakgaugeError) and not run.interrupted:
        raise run.problem
    return Audit(
        plan=plan,
        results=tuple(results),
        findings=tuple(_findings(plan, results, controls)),
        controls=tuple(controls),
        ladder=tuple(run.findings_on(plan.ladder)) if plan.portfolio else (),
        complete=not run.interrupted and not run.failures,
        failed=TasksFailed(run.failures, run.started) if run.failures else None,
        forecast=run.forecast,
    )


@dataclass(eq=False)
class _Run:
    """The state of one run of an audit: the finished results, the failures and the time that is spent."""

    plan: AuditPlan
    cache: Cache
    running: Running
    stop_after: int | None
    results: dict[Work, ClientResult] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    problem: Exception | None = None
    interrupted: bool = False
    started: int = 0
    new: int = 0
    forecast: Forecast | None = None
    began: float = field(default_factory=time.monotonic)

    def stage(self, works: Sequence[Work]) -> None:
        """Run the given attacks unless their results are in the cache, and collect all results."""
        if self.interrupted:
            return
        self.started += len(works)
        missing = []
        for work in works:
            entry = self.cache.get(self._definition(work)) or self.cache.get(self._definition(work, cut=True))
            if entry is None:
                missing.append(work)
            else:
                self.results[work] = ClientResult(work, entry.document, entry.tensors)
        if missing:
            self._run(missing)

    def _run(self, works: Sequence[Work]) -> None:
        running, common = self.running, {"plan": self.plan, "device": self.running.device}
        tasks: list[Task] = []
        try:
            shares = self._expected().shares(works, time.monotonic() - self.began)
            tasks += [_task(work, shares[work]) for work in works]
            done = run_tasks(tasks, engine=running.engine, jobs=running.jobs, watch=running.watch, common=common)
            for task, (document, tensors) in done:
                work = task.arguments["work"]
                definition = self._definition(work, cut=_is_cut(work, document))
                self.cache.put(definition, document, tensors, samples=SAMPLES)
                self.results[work] = ClientResult(work, document, tensors)
                self.new += 1
                if self.new == self.stop_after:
                    self.interrupted = True
                    break
        except TasksFailed as problem:
            self.failures |= problem.failures
        except EngineUnavailable:
            raise  # the tasks of other stages would wait for it in vain
        except LeakgaugeError as problem:  # every task of this stage failed, or a result cannot be stored
            self.problem = self.problem or problem
            left = [task for task in tasks if task.arguments["work"] not in self.results]
            self.failures |= {task.name: str(problem) for task in left}
        except KeyboardInterrupt:
            self.interrupted = True  # the results so far are cached, and the audit is marked as incomplete

    def _definition(self, work: Work, *, cut: bool = False) -> dict[str, Any]:
        """Return everything that a result depends on. A result that the budget cut short depends on the budget too."""
        definition = {**self.plan.definition(work), "device": self.running.device}
        return {**definition, "budget": self.plan.budget} if cut else definition

    def _expected(self) -> Forecast:
        """Return the expected run time of the audit. It is estimated once, and then reported to the listener."""
        if self.forecast is None:
            running = self.running
            jobs = 1 if running.engine == "in-process" else running.jobs or usable_cores()
            if self.plan.budget is None and running.watch is None:
                self.forecast = Forecast(dict.fromkeys(self.plan.attacks, 0.0), jobs)
            else:
                self.forecast = forecast(self.plan, jobs)
            if running.watch is not None:
                running.watch.note(self.forecast.sentence(self.plan.work))
        return self.forecast

    def is_settled(self, work: Work) -> bool:
        """Return whether an exact attack has already recovered every sample of this client, with this defence."""
        return self.plan.portfolio and any(
            result.document.get("settled") and (result.work.defence, result.work.client) == (work.defence, work.client)
            for result in self.results.values()
        )

    def further_attempts(self) -> list[Work]:
        """Return second attempts of attacks that found nothing and whose loss was still falling.

        The list is empty if the user chose the attacks, or if the budget has no time for second attempts.
        """
        if not self.plan.portfolio or self.plan.budget is None:
            return []
        negative = {_key(result.work) for result in self.best_results()} - {
            _key_of(finding) for finding in _judged(self.plan, self.best_results()) if finding.verdict.leaks
        }
        again = [
            replace(result.work, attempt=1)
            for result in self.best_results()
            if _key(result.work) in negative and result.document.get("falling") and result.document["scale"] == 1
        ]
        left = self.plan.budget - (time.monotonic() - self.began)
        return again if again and self._expected().total(again) < left else []

    def unsuccessful(self) -> list[str]:
        """Return the names of attacks that failed in at least one case, and must also be run on easier set-ups.

        If every client of the audit has a defence, all attacks are returned. Each attack is then also run on clients
        without a defence, so that the results with and without a defence can be compared.
        """
        if UNDEFENDED in self.plan.controls:
            return list(self.plan.attacks)
        findings = _judged(self.plan, self.best_results())
        failed = {finding.attack for finding in findings if finding.verdict is not Verdict.RECOVERS_DATA}
        return [name for name in self.plan.attacks if name in failed]

    def climb(self, findings: Sequence[Finding]) -> list[Work]:
        """Return the runs that show how the strongest attack depends on single values of the set-up.

        Each run changes one value of the audited set-up, such as the number of samples. Runs for which the budget has
        no time are left out.
        """
        name = strongest_attack(findings)
        if name is None or not self.plan.portfolio or self.plan.budget is None:
            return []
        left = self.plan.budget - (time.monotonic() - self.began)
        seconds = self._expected().seconds[name] / max(1, self.plan.scenario.samples)
        affordable = [rung for rung in self.plan.ladder.values() if 8 * seconds * rung.weight < left]
        works = [Work(UNDEFENDED, name, False, 0, rung.name) for rung in affordable]
        return [work for work in works if self.plan.applies(work)]

    def findings_on(self, versions: Collection[str]) -> list[Finding]:
        """Return the measures and the verdict of each attack on each of the named versions of the set-up."""
        groups: dict[tuple[str, str], list[dict[str, Measure]]] = {}
        for result in self.results.values():
            if result.work.control in versions:
                groups.setdefault((result.work.attack, result.work.control), []).append(result.measures)
        return [
            Finding(attack, version, over_clients(scores), judge(scores, labels_granted=True))
            for (attack, version), scores in groups.items()
        ]

    def best_results(self) -> list[ClientResult]:
        """Return one result for each attack on each client, in the order of the plan.

        Among several attempts, the attempt with the lowest loss counts. The attacker knows this loss.
        """
        chosen = []
        for work in self.plan.work:
            attempts = [self.results.get(one) for one in (work, replace(work, attempt=1))]
            made = [result for result in attempts if result is not None]
            if made:
                chosen.append(min(made, key=lambda result: _loss(result.document)))
        return chosen


def _task(work: Work, share: float) -> Task:
    return Task(str(work), attack_client, {"work": work, "scale": share * 2**work.attempt}, kind=work.attack)


def _is_cut(work: Work, document: Mapping[str, Any]) -> bool:
    """Return whether the budget ended an attack before it had done its steps."""
    return bool(document.get("scale", math.inf) < 2**work.attempt)


def _loss(document: dict[str, Any]) -> float:
    loss = document.get("loss")
    return math.inf if loss is None else float(loss)


def _key(work: Work) -> tuple[str, str, bool]:
    return work.attack, work.defence, work.knows_defence


def _key_of(finding: Finding) -> tuple[str, str, bool]:
    return finding.attack, finding.setup, finding.knows_defence


def _judged(plan: AuditPlan, results: Sequence[ClientResult]) -> list[Finding]:
    """Return the measures and the verdict for each combination of attack, defence and knowledge of the defence.

    These verdicts do not yet consider whether an attack that found nothing is too weak.
    """
    findings = []
    for key in dict.fromkeys(_key(result.work) for result in results):
        scores = [result.measures for result in results if _key(result.work) == key]
        verdict = judge(scores, labels_granted=plan.scenario.labels_granted)
        attack, defence, knows_defence = key
        findings.append(Finding(attack, defence, over_clients(scores), verdict, knows_defence))
    return findings


def _findings(plan: AuditPlan, results: Sequence[ClientResult], controls: Sequence[Finding]) -> list[Finding]:
    """Add reasons to the verdicts. A verdict of no leakage becomes inconclusive if the attack may be too weak.

    The set-up without a defence is judged first, because the verdicts on defences depend on it.
    """
    cut = {_key(result.work) for result in results if _is_cut(result.work, result.document)}
    findings = {_key_of(finding): finding for finding in _judged(plan, results)}
    undefended = next((title for title, chain in plan.chains.items() if not chain), None)
    order = sorted(findings, key=lambda key: key[1] != undefended)
    for key in order:
        attack, defence, _ = key
        mine = {one.setup: one for one in controls if one.attack == attack}
        baseline = mine.pop(UNDEFENDED, None) if undefended is None else findings.get((attack, undefended, False))
        if baseline is not None and undefended is None:
            baseline = with_support(baseline, Evidence(_needed(plan, mine)))
        bound = plan.bounds.get(defence)
        proof = bound.sentence if bound is not None and supports_nothing_found(bound) else ""
        evidence = Evidence(
            _needed(plan, mine), None if defence == undefended else baseline, cut_short=key in cut, proof=proof
        )
        findings[key] = with_support(findings[key], evidence)
    return list(findings.values())


def _needed(plan: AuditPlan, controls: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the positive controls (easier versions of the set-up) on which an attack must succeed.

    If the message is too small to determine all samples, only the control with one sample is needed.
    """
    return {name: one for name, one in controls.items() if not plan.underdetermined or name == ONE_SAMPLE}


def attack_client(plan: AuditPlan, work: Work, report: Report, device: str | None = None, scale: float = 1.0) -> Scored:
    """Attack one client, and score the result.

    Args:
        plan: The plan of the audit.
        work: The attack and the client.
        report: The function that is called after each step.
        device: The device of the attack.
        scale: The factor by which the attack's number of steps is multiplied.
    """
    scenario = plan.scenario_of(work)
    observation, truth = scenario.observe(work.client, plan.chain_of(work), knows_defence=work.knows_defence)
    seed = scenario.seed + work.client if not work.attempt else derive(scenario.seed, work.client, work.attempt)
    trial = Trial(observation, truth, seed, plan.threshold, device, scale)
    return plan.attacks[work.attack](trial, report)
