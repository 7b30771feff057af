"""The stages in which the attacks of an audit run. Finished attacks are cached.

1. Exact attacks run first, because they take seconds and recognise their own success.
2. The other attacks run on the clients whose samples the exact attacks have not recovered.
3. Searches that found no samples start again and get more steps, if the budget has time.
4. Attacks that found nothing run on easier versions of the set-up, which are called positive controls.
5. The strongest attack runs on harder and easier versions of the set-up (:mod:`leakgauge.workflows.audit.ladder`), if
   the budget has time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leakgauge.attacks.spec import Cost
from leakgauge.core.container import Location
from leakgauge.core.errors import EngineUnavailable, LeakgaugeError, TasksFailed
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive
from leakgauge.evaluation.support import SAMPLES_OPEN, without_evidence
from leakgauge.evaluation.verdict import Finding, Verdict, together, worst_of
from leakgauge.runtime import Task, run_tasks
from leakgauge.runtime.cache import Cache
from leakgauge.runtime.ctrl_c import SENTENCE, stopping
from leakgauge.runtime.processes import usable_cores
from leakgauge.workflows.audit.attackers import SAMPLES, Scored, Trial
from leakgauge.workflows.audit.budget import Allowance, Forecast, forecast
from leakgauge.workflows.audit.judging import (
    ClientResult,
    findings_on_versions,
    findings_with_support,
    judged,
    key_of,
    key_of_work,
    loss_in,
)
from leakgauge.workflows.audit.ladder import sentences, strongest_attack
from leakgauge.workflows.audit.lying import LyingServer, stated
from leakgauge.workflows.audit.plan import UNDEFENDED, AuditPlan, Work
from leakgauge.workflows.result import Running, WorkflowResult


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
        seconds: The time of all attacks together, with positive controls and the ladder.
        lying: What a malicious server would take, which is no part of the verdict.
    """

    plan: AuditPlan
    results: tuple[ClientResult, ...]
    controls: tuple[Finding, ...] = ()
    ladder: tuple[Finding, ...] = ()
    forecast: Forecast | None = None
    seconds: float = 0.0
    lying: LyingServer | None = None

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
        """Return the reason for the verdict on one defence, or an empty text if there is no reason to report.

        The reason of an attack that was strong enough comes first. The reason why an optimisation found nothing comes
        before the reason why an exact attack could prove nothing.
        """
        verdict, look = self.verdict_on(defence), self.plan.first_look
        told = [one for one in self.findings if one.setup == defence and one.verdict is verdict and one.reason]
        told.sort(key=lambda one: (one.reason.startswith(SAMPLES_OPEN), self.plan.is_exact(one.attack)))
        reason = told[0].reason if told else ""
        if verdict is Verdict.INCONCLUSIVE and self.plan.portfolio and look.missing:
            reason += (
                f" Optimisation attacks were left out, because the attacker does not know {look.missing}. A real "
                "attacker may guess it, so grant it to try them."
            )
        return reason.strip()

    @property
    def ladder_sentences(self) -> list[str]:
        """Sentences about how many samples, how many local steps and how much noise still allow a successful attack."""
        return sentences(self.plan.ladder, self.ladder)

    def results_of(self, finding: Finding) -> list[ClientResult]:
        """Return the results that a finding summarises, one for each client."""
        key = (finding.attack, finding.setup, finding.knows_defence)
        return [one for one in self.results if key_of_work(one.work) == key]


def run_audit(
    plan: AuditPlan,
    folder: Location,
    running: Running | None = None,
    *,
    stop_after: int | None = None,
    samples: bool = True,
) -> Audit:
    """Run the attacks that are not finished yet, and return all results.

    The result of each task is cached at once. Ctrl-C ends the running attacks, and their best results so far are kept.
    The next run replaces these results.

    Args:
        plan: The plan of the audit.
        folder: The folder of the cache.
        running: The engine, the device and the listener of the tasks. An audit can be continued with another engine.
        stop_after: The number of new results after which the audit stops. By default, all attacks are run.
        samples: Whether clients' samples are stored in the cache. If it is false, those of earlier runs are removed.
    """
    run = _Run(plan, Cache(folder, samples=samples), running or Running(), stop_after)
    lying, run.interrupted = stated(plan, run.cache)
    for cost in Cost:  # a slow exact attack is left out where a quick one has every sample
        run.stage([work for work in plan.exact_attacks(cost) if not run.is_settled(work)])
    run.stage([work for work in plan.work if not plan.is_exact(work.attack) and not run.is_settled(work)])
    run.stage(run.further_attempts())
    run.stage([work for name in plan.attacks for work in plan.controls_of(name) if work.control == UNDEFENDED])
    run.stage(
        [work for name in run.without_evidence() for work in plan.controls_of(name) if work.control != UNDEFENDED]
    )
    results = run.best_results()
    controls = findings_on_versions(run.results.values(), plan.controls)
    run.stage(run.climb([*judged(plan, results), *controls]))
    ladder = findings_on_versions(run.results.values(), plan.ladder if plan.portfolio else ())
    if not results and isinstance(run.problem, LeakgaugeError) and not run.interrupted:
        raise run.problem
    return Audit(
        plan=plan,
        results=tuple(results),
        findings=tuple(findings_with_support(plan, results, controls, run.without_controls)),
        controls=tuple(controls),
        ladder=tuple(without_evidence(one) for one in ladder if one.verdict is not Verdict.INCONCLUSIVE),
        complete=not run.interrupted and not run.failures,
        failed=TasksFailed(run.failures, run.started) if run.failures else None,
        forecast=run.forecast,
        seconds=sum(float(result.document["seconds"]) for result in run.results.values()),
        lying=lying,
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
    without_controls: set[str] = field(default_factory=set)
    began: float = field(default_factory=lambda: time.monotonic())

    @property
    def spent(self) -> float:
        """The seconds since the start of the audit."""
        return time.monotonic() - self.began

    def stage(self, works: Sequence[Work]) -> None:
        """Run the given attacks unless their results are in the cache, and collect all results.

        A cached result that was cut short is used again only if the budget has not become larger. Positive controls
        are left out if the budget is used up.
        """
        if self.interrupted:
            return
        self.started += len(works)
        missing = []
        for work in works:
            entry = self.cache.get(self._definition(work))
            if entry is not None:  # what was cut short counts until there is a better result
                self.results[work] = ClientResult(work, entry.document, entry.tensors)
            if entry is None or not self._is_enough(entry.document):
                missing.append(work)
        budget = self.plan.budget
        if budget is not None and self.spent >= budget:
            self.without_controls |= {work.attack for work in missing if work.control in self.plan.controls}
            missing = [work for work in missing if not work.control]
        if missing:
            self._run(missing)

    def _is_enough(self, document: dict[str, Any]) -> bool:
        """Return whether a cached result is complete, or was made with at least the budget of this audit.

        The result of an attack that Ctrl-C ended is never enough.
        """
        budget = self.plan.budget
        if document.get("interrupted"):
            return False
        return not document.get("cut_short") or (budget is not None and budget <= document["budget"])

    def _run(self, works: Sequence[Work]) -> None:
        running, common = self.running, {"plan": self.plan, "device": self.running.device}
        tasks: list[Task] = []
        try:
            allowances = self._expected().allowances(works, self.spent)
            tasks += [_task(work, allowances[work]) for work in works]
            with stopping(sentence=SENTENCE if running.watch is not None else "") as stop:
                done = run_tasks(
                    tasks, engine=running.engine, jobs=running.jobs, watch=running.watch, common=common, stop=stop
                )
                for task, (document, tensors) in done:
                    self._keep(ClientResult(task.arguments["work"], document, tensors))
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

    def _keep(self, result: ClientResult) -> None:
        """Store a result in the cache, unless an earlier result of an attack that Ctrl-C ended is as good."""
        self.new += 1
        earlier = self.results.get(result.work)
        if earlier is not None and result.interrupted and loss_in(earlier.document) <= loss_in(result.document):
            return
        self.cache.put(self._definition(result.work), result.document, result.tensors, samples=SAMPLES)
        self.results[result.work] = result

    def _announce(self) -> None:
        """Measure the expected run time of the audit once, and report it to the listener."""
        if self.forecast is not None:
            return
        running = self.running
        jobs = 1 if running.engine == "in-process" else running.jobs or usable_cores()
        if self.plan.budget is None and running.watch is None:
            self.forecast = Forecast(dict.fromkeys(self.plan.attacks, 0.0), jobs)
        else:
            if running.watch is not None:
                running.watch.note("Measuring how long the attacks take.")
            with stopping(sentence=SENTENCE if running.watch is not None else "") as stop:
                self.forecast = forecast(self.plan, jobs, stop.check)
        if running.watch is not None:
            plan = self.plan
            running.watch.note(self.forecast.sentence(plan.work, plan.exact_work, plan.possible_controls))

    def _definition(self, work: Work) -> dict[str, Any]:
        """Return everything that a result depends on."""
        return {**self.plan.definition(work), "device": self.running.device}

    def _expected(self) -> Forecast:
        """Return the forecast, with the measured times of attacks that have run instead of the expected times."""
        self._announce()
        assert self.forecast is not None
        seconds: dict[str, list[float]] = {}
        for work, result in self.results.items():
            if not (work.control or work.attempt or result.cut_short):
                seconds.setdefault(work.attack, []).append(result.document["seconds"] / self.forecast.weight(work))
        measured = {name: sum(values) / len(values) for name, values in seconds.items()}
        return replace(self.forecast, seconds={**self.forecast.seconds, **measured})

    def is_settled(self, work: Work) -> bool:
        """Return whether an exact attack has already recovered every sample of this client, with this defence."""
        return self.plan.portfolio and any(
            result.document.get("settled") and (result.work.defence, result.work.client) == (work.defence, work.client)
            for result in self.results.values()
        )

    def further_attempts(self) -> list[Work]:
        """Return second attempts of searches that found no samples, from other starting points and with more steps.

        Searches whose loss was still falling come first, and the others follow if at least half of the remaining time
        is left for positive controls. Labels alone do not stop the search, because samples leak more. The list is empty
        if the user chose the attacks, or if the budget has no time for second attempts.
        """
        if not self.plan.portfolio or self.plan.budget is None:
            return []
        results = self.best_results()
        leaking = {key_of(one) for one in judged(self.plan, results) if one.verdict is Verdict.RECOVERS_DATA}
        failed = [one for one in results if key_of_work(one.work) not in leaking and not one.cut_short]
        failed = [one for one in failed if not self.is_settled(one.work)]
        every = [replace(one.work, attempt=1) for one in failed if one.document.get("searched")]
        falling = [replace(one.work, attempt=1) for one in failed if one.document.get("falling")]
        expected, left = self._expected(), self.plan.budget - self.spent
        if every and expected.total(every) < left / 2:
            return every
        return falling if falling and expected.total(falling) < left else []

    def without_evidence(self) -> list[str]:
        """Return the names of attacks that need easier versions of the set-up as positive controls.

        These attacks failed in at least one case, had all of their steps, and did not succeed without a defence either.
        """
        plan, results = self.plan, self.best_results()
        findings = judged(plan, results) + findings_on_versions(self.results.values(), plan.controls)
        plain = {title for title, chain in plan.chains.items() if not chain} | {UNDEFENDED}
        strong = {one.attack for one in findings if one.setup in plain and one.verdict is Verdict.RECOVERS_DATA}
        settled = {  # another attack has every sample, so the failure of this one says nothing
            title for title in plan.chains if all(self.is_settled(work) for work in plan.work if work.defence == title)
        }
        weak = {one.attack for one in findings if one.verdict is not Verdict.RECOVERS_DATA and one.setup not in settled}
        weak -= strong
        complete = {result.work.attack for result in results if not result.cut_short}
        return [name for name in plan.attacks if name in weak & complete]

    def climb(self, findings: Sequence[Finding]) -> list[Work]:
        """Return the runs that show how the strongest attack depends on single values of the set-up.

        Each run changes one value of the audited set-up, such as the number of samples. Runs for which the budget has
        no time are left out.
        """
        name = strongest_attack(findings)
        if name is None or not self.plan.portfolio or self.plan.budget is None:
            return []
        expected, measured = self.forecast, self._expected()  # a rung that fails takes longer than a success
        longest = max(measured.seconds[name], 0.0 if expected is None else expected.seconds[name])
        seconds = longest / max(1, self.plan.scenario.samples)
        left = (self.plan.budget - self.spent) / 2  # the times of rungs are rough estimates
        works = []
        for rung in sorted(self.plan.ladder.values(), key=lambda rung: rung.weight):
            work = Work(UNDEFENDED, name, False, 0, rung.name)
            left -= seconds * rung.weight
            if left > 0 and self.plan.applies(work):
                works.append(work)
        return works

    def best_results(self) -> list[ClientResult]:
        """Return one result for each attack on each client, in the order of the plan.

        Among several attempts, the attempt with the lowest loss counts. The attacker knows this loss.
        """
        chosen = []
        for work in self.plan.work:
            attempts = [self.results.get(one) for one in (work, replace(work, attempt=1))]
            made = [result for result in attempts if result is not None]
            if made:
                chosen.append(min(made, key=lambda result: loss_in(result.document)))
        return chosen


def _task(work: Work, allowance: Allowance) -> Task:
    arguments = {"work": work, "scale": allowance.share * 2**work.attempt, "allowance": allowance}
    return Task(str(work), attack_client, arguments, kind=work.attack)


def attack_client(
    plan: AuditPlan,
    work: Work,
    report: Report,
    device: str | None = None,
    scale: float = 1.0,
    allowance: Allowance | None = None,
) -> Scored:
    """Attack one client, and score the result.

    Args:
        plan: The plan of the audit.
        work: The attack and the client.
        report: The function that is called after each step.
        device: The device of the attack.
        scale: The factor by which the attack's number of steps is multiplied.
        allowance: The attack's part of the budget. ``None`` means no limit.
    """
    scenario = plan.scenario_of(work)
    attacker, chain = plan.attacks[work.attack], plan.chain_of(work)
    observation, truth = scenario.observe(work.client, chain, knows_defence=work.knows_defence)
    seed = scenario.seed + work.client if not work.attempt else derive(scenario.seed, work.client, work.attempt)
    limit = None if allowance is None else allowance.seconds()
    other = scenario.shuffled(observation, chain, work.client) if attacker.needs_public else None
    trial = Trial(observation, truth, seed, plan.threshold, device, scale, limit, other)
    document, tensors = attacker(trial, report)
    return document | {"budget": plan.budget}, tensors
