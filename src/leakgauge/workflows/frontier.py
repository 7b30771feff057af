"""The frontier of defences, which shows how much leakage and how much accuracy remain with each defence.

The plan is in :mod:`leakgauge.workflows.frontier_plan`.

For owners, the attacker sees the messages of one round of all attacked clients and knows their records, but not which
record belongs to which client. With secure aggregation of K clients, these clients form sums of K, and the attacker
guesses a client of the sum.

The clients that train and the clients that are attacked use the same defence. If the attack adapts to known defences,
there are two attackers, and only one of them knows the defence. The result of the stronger attacker counts.

If ``[attacker] public`` grants public data, a further attack learns from them. Its results stand beside the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakgauge.core.container import Location
from leakgauge.core.errors import TasksFailed
from leakgauge.core.measure import Measure
from leakgauge.core.own_files import check_output
from leakgauge.core.progress import Report, silent
from leakgauge.evaluation.gate import read_condition
from leakgauge.evaluation.support import Evidence, with_support
from leakgauge.evaluation.verdict import Finding, Verdict, judge_against_shuffled, over_clients, worst_of
from leakgauge.federation.defence import clients_in_a_sum
from leakgauge.federation.rounds import run_federation
from leakgauge.runtime import Task, Watch
from leakgauge.runtime.cache import run_cached
from leakgauge.workflows.audit.attackers import Attacker, Trial, measures_of
from leakgauge.workflows.determined import may_determine
from leakgauge.workflows.documents import read_config
from leakgauge.workflows.frontier_plan import FrontierPlan, read_frontier
from leakgauge.workflows.owners import METRIC as SOURCES
from leakgauge.workflows.public_samples import with_public
from leakgauge.workflows.result import Running, WorkflowResult, conclude, measuring

#: The metrics of leakage. The first metric of this list that an attack has decides which attacker is stronger.
LEAKAGE = ("psnr", "features", "attribute_accuracy", "recovered", SOURCES)


@dataclass(frozen=True)
class Leak:
    """The result of one attack with one defence.

    Args:
        leakage: The mean over clients of each metric in :data:`LEAKAGE` that the attack has.
        knows_defence: Whether the stronger attacker knew the defence.
        verdict: The worse of the verdicts on the two attackers.
        reason: The control with shuffled messages in words, if there is one.
        failed: Whether the stronger attacker failed by its own reckoning for a client, and returned a guess.
    """

    leakage: dict[str, Measure]
    knows_defence: bool
    verdict: Verdict
    reason: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Point:
    """The measured leakage and utility of one defence.

    Args:
        title: The title of the defence.
        defences: The defences with their settings.
        utility: The test accuracy, or the mean squared error of a regression.
        epsilon: The privacy budget that was spent. It is ``None`` for defences without a budget.
        leakage: The mean over clients of each metric in :data:`LEAKAGE`. Metrics that the attack does not have are left
            out.
        knows_defence: Whether the stronger attacker knew the defence.
        verdict: The worse of the verdicts on the two attackers.
        seconds: The time in seconds that the measurement took.
        clients: The number of clients of a round.
        owners: The result of the attack on the owners of records, or ``None`` if there is no such attack.
        public: The result of the attacker with public data, or ``None`` if there is no such attacker.
        failed: Whether the stronger attacker failed by its own reckoning for a client, and returned a guess.
    """

    title: str
    defences: str
    utility: float
    epsilon: float | None
    leakage: dict[str, Measure]
    knows_defence: bool
    verdict: Verdict
    seconds: float
    clients: int | None = None
    owners: Finding | None = None
    public: Leak | None = None
    failed: bool = False

    @property
    def worst(self) -> Verdict:
        """The worst of the verdicts on all attacks."""
        return worst_of([self.samples, *([] if self.owners is None else [self.owners.verdict])])

    @property
    def samples(self) -> Verdict:
        """The verdict on the attackers without and with public data together."""
        verdicts = {self.verdict, *([] if self.public is None else [self.public.verdict])}
        if Verdict.NOTHING_ABOVE_CHANCE in verdicts:  # a weak attack says nothing where a strong one does
            verdicts.discard(Verdict.INCONCLUSIVE)
        return worst_of(verdicts)

    def verdict_on(self, metric: str) -> Verdict:
        """Return the verdict on the attack that a metric of leakage belongs to."""
        return self.owners.verdict if metric == SOURCES and self.owners is not None else self.verdict


@dataclass(frozen=True, eq=False, kw_only=True)
class Frontier(WorkflowResult):
    """The measured leakage and utility of all defences in a plan.

    Args:
        plan: The plan of the frontier.
        points: One point for each defence, in the order of the plan.
    """

    plan: FrontierPlan
    points: tuple[Point, ...]

    @property
    def clients(self) -> dict[str, int]:
        """A dictionary from the title of each defence to the number of attacked clients."""
        return {title: self.plan.clients_of(title) for title in self.plan.chains}


@measuring()
def frontier(  # noqa: PLR0913
    config: Location | Mapping[str, Any] | FrontierPlan,
    output: Location = "frontier",
    *,
    fail_if: Sequence[str] = (),
    junit: Location | None = None,
    engine: str = "auto",
    jobs: int | None = None,
    device: str | None = None,
    public: int | str | None = None,
    watch: Watch | None = None,
    command: str = "",
) -> Frontier:
    """Measure how much leakage and how much accuracy remain with each defence of a set-up.

    The command ``leakgauge frontier`` calls this function.

    Args:
        config: A TOML file, a dictionary with the same content, or a plan.
        output: The folder for the report page, the figures and the cache.
        fail_if: The conditions under which the command fails, such as ``"psnr > 20"``
            (:mod:`leakgauge.evaluation.gate`).
        junit: The file to which the results of these conditions are written as JUnit XML.
        engine: The engine that runs the tasks (:mod:`leakgauge.runtime.engines`).
        jobs: The number of tasks that run at a time. By default, one per core.
        device: The device of the attacks, such as ``"cuda"``.
        public: The public data of the attacker, as ``[attacker] public`` in the configuration
            (:mod:`leakgauge.workflows.public_samples`). By default, the value in the configuration.
        watch: The listener that receives the progress of the tasks.
        command: The command line, which the report page shows.
    """
    from leakgauge.reports.frontier import write_frontier  # also imports the drawing libraries

    names = [f"frontier{suffix}" for suffix in (".html", ".json", ".csv", ".png")]
    check_output(output, [*names, *(f"frontier-{metric}.png" for metric in LEAKAGE)], junit)
    running = Running(engine, jobs, device, watch)
    plan = config if isinstance(config, FrontierPlan) else read_frontier(*with_public(read_config(config), public))
    if watch is not None:
        for sentence in plan.scenario.dataset.notes:
            watch.note(sentence)
    attacks = [one.name for one in (plan.attack, plan.sources, plan.public) if one is not None]
    conditions = [read_condition(text, attacks) for text in fail_if]
    result = run_frontier(plan, Path(output) / "cache", running)
    if not result.points:
        if result.failed is not None:
            raise result.failed
        return result
    return conclude(result, conditions, junit, lambda one: write_frontier(one, Path(output), command))


def run_frontier(plan: FrontierPlan, folder: Location | None, running: Running | None = None) -> Frontier:
    """Measure every defence of a plan, by training with the defence and attacking clients that use it.

    Args:
        plan: The plan of the frontier.
        folder: The folder of the cache. If it is ``None``, nothing is cached.
        running: The engine, the device and the listener of the tasks.
    """
    running = running or Running()
    points: dict[str, Point] = {}
    failed, complete = None, True
    try:
        points.update(_measured(plan, folder, running))
    except TasksFailed as problem:
        failed, complete = problem, False
    except KeyboardInterrupt:
        complete = False
    measured = [points[title] for title in plan.chains if title in points]
    leaks = [Leak(point.leakage, point.knows_defence, point.verdict, failed=point.failed) for point in measured]
    findings = _findings(plan, plan.attack.name, measured, leaks)
    ordered = [replace(point, verdict=finding.verdict) for point, finding in zip(measured, findings, strict=True)]
    if plan.public is not None:
        learned = [point.public for point in measured if point.public is not None]
        more = _findings(plan, plan.public.name, measured, learned)
        ordered = [
            replace(point, public=replace(leak, verdict=finding.verdict, reason=finding.reason))
            for point, leak, finding in zip(ordered, learned, more, strict=True)
        ]
        findings += more
    owners = [point.owners for point in ordered if point.owners is not None]
    return Frontier(plan=plan, points=tuple(ordered), findings=(*findings, *owners), failed=failed, complete=complete)


def _findings(plan: FrontierPlan, attack: str, points: Sequence[Point], leaks: Sequence[Leak]) -> list[Finding]:
    """Return the measures and the verdict of one attack for each defence.

    The set-up without a defence is the positive control. If the attack fails there too, its failure against a defence
    is inconclusive. It is also inconclusive if the defended message may determine the samples, as a clipped gradient
    does.
    """
    found = {}
    for point, leak in zip(points, leaks, strict=True):
        measures = {name: measure for name, measure in leak.leakage.items() if name != SOURCES}
        found[point.title] = Finding(attack, point.title, measures, leak.verdict, leak.knows_defence, leak.reason)
    plain = next((title for title in found if not plan.chains[title]), None)
    reasons = {title: may_determine(plan.scenario, plan.chains[title]) for title in found}
    baseline = None if plain is None else with_support(found[plain], Evidence({}, determined=reasons[plain]))
    failed = {point.title: leak.failed for point, leak in zip(points, leaks, strict=True)}
    return [
        with_support(
            finding,
            Evidence({}, None if title == plain else baseline, determined=reasons[title], failed=failed[title]),
        )
        for title, finding in found.items()
    ]


def _measured(plan: FrontierPlan, folder: Location | None, running: Running) -> Iterator[tuple[str, Point]]:
    tasks = [Task(title, measure_point, {"title": title}) for title in plan.chains]
    definitions = {title: {**plan.definition(title), "device": running.device} for title in plan.chains}
    common = {"plan": plan, "device": running.device}
    options = {"engine": running.engine, "jobs": running.jobs, "watch": running.watch, "common": common}
    for task, point in run_cached(tasks, definitions, folder, **options):
        yield task.name, point


def measure_point(plan: FrontierPlan, title: str, report: Report, device: str | None = None) -> Point:
    """Measure one defence, by training with the defence and attacking clients that use it.

    Args:
        plan: The plan of the frontier.
        title: The title of the defence.
        report: The function that is called after each attacked client.
        device: The device of the attacks.
    """
    began = time.perf_counter()
    chain, clients = plan.chains[title], plan.clients_of(title)
    utility, epsilon = _train(plan, title)
    leak = _attacked(plan, plan.attack, title, report, device)
    public = None if plan.public is None else _attacked(plan, plan.public, title, report, device)
    owners = _owners(plan, title)
    measures = leak.leakage if owners is None else {**leak.leakage, **owners.measures}
    defences = ", ".join(map(repr, chain)) or "none"
    seconds = time.perf_counter() - began
    found = (measures, leak.knows_defence, leak.verdict, seconds, clients, owners, public, leak.failed)
    return Point(title, defences, utility, epsilon, *found)


def _attacked(plan: FrontierPlan, attack: Attacker, title: str, report: Report, device: str | None) -> Leak:
    """Return the result of one attack on all clients, as an attacker who knows the defence and as one who does not."""
    chain, clients = plan.chains[title], plan.clients_of(title)
    defended = plan.scenario.observe(0, chain, knows_defence=True, participations=plan.rounds)[0] if chain else None
    attackers = [False, True] if defended is not None and attack.adapts(defended) else [False]
    scores: dict[bool, list[dict[str, Measure]]] = {knows: [] for knows in attackers}
    shuffled: dict[bool, list[dict[str, Measure]]] = {knows: [] for knows in attackers}
    failed = dict.fromkeys(attackers, False)
    for number, (knows, index) in enumerate((knows, index) for knows in attackers for index in range(clients)):
        observation, truth = plan.scenario.observe(index, chain, knows_defence=knows, participations=plan.rounds)
        other = plan.scenario.shuffled(observation, chain, index, plan.rounds) if attack.needs_public else None
        trial = Trial(observation, truth, plan.scenario.seed + index, plan.threshold, device, shuffled=other)
        document, _ = attack(trial, silent)
        scores[knows].append(measures_of(document))
        shuffled[knows].append(measures_of(document, "shuffled"))
        failed[knows] |= bool(document.get("failed"))
        report(number + 1, len(attackers) * clients, math.nan if document["loss"] is None else document["loss"])
    leakage = {knows: _leakage(scores[knows]) for knows in attackers}
    strongest = max(attackers, key=lambda knows: next(iter(leakage[knows].values())).value)
    granted = plan.scenario.labels_granted
    verdicts = {
        knows: judge_against_shuffled(scores[knows], shuffled[knows], labels_granted=granted) for knows in attackers
    }
    worst = worst_of(verdict for verdict, _ in verdicts.values())
    return Leak(leakage[strongest], strongest, worst, verdicts[strongest][1], failed[strongest])


def _owners(plan: FrontierPlan, title: str) -> Finding | None:
    """Return the result of the attack on the owners of the records of one round, if the plan has such an attack."""
    if plan.sources is None:
        return None
    chain = plan.chains[title]
    in_a_sum = clients_in_a_sum(chain)
    sums = plan.clients_of(title) // in_a_sum
    parts = [plan.scenario.observe(index, chain, participations=plan.rounds, start=0) for index in range(sums)]
    return plan.sources(parts, in_a_sum, title, silent)


def _leakage(scores: Sequence[Mapping[str, Measure]]) -> dict[str, Measure]:
    measures = over_clients(scores)
    return {name: measures[name] for name in LEAKAGE if name in measures}


def _train(plan: FrontierPlan, title: str) -> tuple[float, float | None]:
    """Train a model in a federation whose clients use the given defences.

    Return the model's utility and the largest epsilon that a client has spent.
    """
    scenario, chain, number = plan.scenario, plan.chains[title], plan.federation_of(title)
    attacked = clients_in_a_sum(chain) * plan.clients_of(title) * scenario.samples
    clients = [scenario.share(index, plan.federation_samples, first=attacked) for index in range(number)]
    used = attacked + number * plan.federation_samples
    recipe = scenario.recipe | ({} if plan.federation_lr is None else {"lr": plan.federation_lr})
    federation = run_federation(
        scenario.network(),
        clients,
        rounds=plan.rounds,
        defences=chain,
        test=scenario.share(0, plan.test, first=used),
        test_every=plan.rounds,
        seed=scenario.seed,
        **recipe,
        **scenario.loss_and_mode,
    )
    if federation.interrupted:
        raise KeyboardInterrupt
    return federation.history[-1][1], max(federation.spent.values(), default=None)
