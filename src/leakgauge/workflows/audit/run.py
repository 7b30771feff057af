"""Attack a set-up's clients with several attacks, with and without defences; what was done is never done twice.

A document of :mod:`leakgauge.workflows.scenario` with more tables, none of which is needed:

======================  ===========================================================================================
``[audit]``             ``attacks`` (names, or tables with a name and options; default: those that fit), ``clients``
                        to attack, ``threshold`` in dB from which a sample counts as recovered, ``told`` (whether
                        attackers who know the defence, and can make use of that, are tried too; default: yes)
``[[defence]]``         ``title``, ``chain``: a list of defences, each a table with its name and settings. Without
                        any, clients do not defend themselves
======================  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import leakgauge
from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, TasksFailed
from leakgauge.core.progress import Report
from leakgauge.evaluation.verdict import Figure, Verdict, judge, summarise, worst_of
from leakgauge.federation.defence import Defence
from leakgauge.runtime import Task, Watch, run_tasks
from leakgauge.runtime.store import Store, key_of
from leakgauge.workflows.audit import hidden_column
from leakgauge.workflows.audit.attackers import Attacker, Found, read_attacker
from leakgauge.workflows.audit.first_look import Prescreen, prescreen
from leakgauge.workflows.scenario import NUMBER, Kinds, Scenario, load_parts, read_chains, read_scenario

AUDIT: Kinds = {"attacks": (list,), "clients": (int,), "threshold": NUMBER, "told": (bool,)}

#: What is tried where nothing is said, the cheapest first, with steps that a laptop takes in minutes.
DEFAULTS: dict[str, dict[str, Any]] = {
    "epafl": {"retries": 2},
    "surrogate": {"steps": 300},
    "inverting_gradients": {"steps": 1000},
    "dlf": {},
    hidden_column.NAME: {},
}
#: Attacks from the cheapest to the dearest; others come last.
CHEAPEST_FIRST = (
    hidden_column.NAME, "epafl", "idlg", "surrogate", "dlg", "agic", "awa", "dlg_simulation", "inverting_gradients",
    "invg_simulation", "dlf", "dlf_paper",
)  # fmt: skip


@dataclass(frozen=True)
class AuditPlan:
    """An audit to be made. ``adaptive`` are the attacks and the defences that they can make use of knowing."""

    scenario: Scenario
    attacks: dict[str, Attacker]
    chains: dict[str, tuple[Defence, ...]]
    first_look: Prescreen
    clients: int = 4
    threshold: float = 20.0
    adaptive: frozenset[tuple[str, str]] = frozenset()

    @property
    def work(self) -> list[Work]:
        """Everything there is to do, cheap attacks first."""
        order = sorted(self.attacks, key=lambda name: (*CHEAPEST_FIRST, name).index(name))
        return [
            Work(title, name, knows, client)
            for name in order
            for title in self.chains
            for knows in ((False, True) if (name, title) in self.adaptive else (False,))
            for client in range(self.clients)
        ]


@dataclass(frozen=True)
class Work:
    """One attack on one client."""

    title: str
    attack: str
    knows: bool
    client: int

    def __str__(self) -> str:
        return f"{self.attack}, {self.title}{', told' if self.knows else ''}, client {self.client}"


@dataclass(frozen=True, eq=False)
class Result:
    """What came of one piece of work: figures and words, and the samples that it is about."""

    work: Work
    document: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Audit:
    """All results of an audit, and what they say; ``failed`` says what could not be done, and why."""

    plan: AuditPlan
    results: tuple[Result, ...]
    complete: bool
    failed: TasksFailed | None = None

    @property
    def tried(self) -> list[str]:
        """The defences of which there is a result; all of them, once the audit is complete."""
        found = {one.work.title for one in self.results}
        return [title for title in self.plan.chains if title in found]

    def groups(self) -> dict[tuple[str, str, bool], list[Result]]:
        """The results of all clients by attack, defence and whether the attacker knows it."""
        found: dict[tuple[str, str, bool], list[Result]] = {}
        for one in self.results:
            found.setdefault((one.work.attack, one.work.title, one.work.knows), []).append(one)
        return found

    def figures(self, group: list[Result]) -> dict[str, Figure]:
        """The figures over the clients of a group."""
        return summarise([one.document["scores"] for one in group])

    def verdict(self, group: list[Result]) -> Verdict:
        """What a group says."""
        granted = {"labels", "label_counts", "label_batches"} & set(self.plan.scenario.attacker.get("granted", []))
        return judge([one.document["scores"] for one in group], labels_granted=bool(granted))

    def overall(self, title: str | None = None) -> Verdict:
        """What all attacks together say, on one defence or on all."""
        chosen = [group for (_, where, _), group in self.groups().items() if title in (None, where)]
        return worst_of([self.verdict(group) for group in chosen])


def read_audit(document: Mapping[str, Any], where: str) -> AuditPlan:
    """The plan in a document; everything that cannot work is refused here, before any attack starts."""
    rest = {key: value for key, value in document.items() if key != "defence"}
    scenario = read_scenario(rest, where, {"audit": AUDIT})
    table = dict(rest.get("audit", {}))
    if table.get("clients", 1) < 1:
        raise InvalidInput(f"{where}: [audit] clients must be at least 1, not {table['clients']}")
    load_parts(scenario, where)
    chains = read_chains(document.get("defence", []), scenario, where) or {"no defence": ()}
    # What the model or the recipe does not allow is refused here.
    told = {title: scenario.observe(0, chain, knows_defence=True)[0] for title, chain in chains.items() if chain}
    first_look = prescreen(scenario.observe(0)[0])
    chosen = _read_attacks(table.pop("attacks", None), first_look, scenario.dataset.sensitive, where)
    adaptive = {
        (name, title)
        for name, attacker in chosen.items()
        for title, observation in told.items()
        if table.get("told", True) and attacker.adapts(observation)
    }
    table.pop("told", None)
    return AuditPlan(scenario, chosen, chains, first_look, adaptive=frozenset(adaptive), **table)


def _read_attacks(
    listed: list[Any] | None, first_look: Prescreen, sensitive: str | None, where: str
) -> dict[str, Attacker]:
    where = f"{where}: [audit] attacks"
    if listed is None:
        fitting = {*first_look.applies, *([hidden_column.NAME] if sensitive else [])}
        listed = [name for name in DEFAULTS if name in fitting]
    elif not listed:
        raise InvalidInput(f"{where} is empty; leave it out for those that fit")
    chosen: dict[str, Attacker] = {}
    for one in listed:
        options = dict(one) if isinstance(one, dict) else {"name": one}
        name = options.pop("name", None)
        found = read_attacker(name, options or DEFAULTS.get(name, {}), sensitive, where)
        if name in first_look.refused:
            raise InvalidInput(f"{where}: {name} does not apply here: {first_look.refused[name]}")
        chosen[name] = found
    return chosen


def run_audit(
    plan: AuditPlan,
    folder: Location,
    *,
    engine: str = "auto",
    jobs: int | None = 1,
    watch: Watch | None = None,
    stop_after: int | None = None,
) -> Audit:
    """Do what is not done yet, one task a client and attack, and give all results there are.

    Finished work is kept in ``folder`` at once: Ctrl-C, or the end of the process, loses at most what is under way.
    ``engine`` and ``jobs`` say where it runs (:mod:`leakgauge.runtime.engines`); any of them goes on where another ended.
    ``stop_after`` ends after so many new results.
    """
    store = Store(folder)
    keys = {one: key_of(defined_by(plan, one)) for one in plan.work}
    missing = [one for one in plan.work if keys[one] not in store]
    tasks = [Task(str(one), attack_client, {"work": one}, kind=one.attack) for one in missing]
    new, failed = 0, None
    try:
        for task, (document, tensors) in run_tasks(tasks, engine=engine, jobs=jobs, watch=watch, common={"plan": plan}):
            work = task.arguments["work"]
            store.put(keys[work], defined_by(plan, work), document, tensors)
            new += 1
            if new == stop_after:
                break
    except TasksFailed as problem:
        failed = problem
    except KeyboardInterrupt:
        pass  # what is done is kept, and said to be incomplete
    results = list(_collect(store, keys))
    return Audit(plan, tuple(results), len(results) == len(keys), failed)


def _collect(store: Store, keys: Mapping[Work, str]) -> Iterator[Result]:
    for work, key in keys.items():
        found = store.get(key)
        if found is not None:
            yield Result(work, *found)


def attack_client(plan: AuditPlan, work: Work, report: Report) -> Found:
    """Attack one client and score what came back."""
    observation, truth = plan.scenario.observe(work.client, plan.chains[work.title], knows_defence=work.knows)
    attacker = plan.attacks[work.attack]
    return attacker(observation, truth, seed=plan.scenario.seed + work.client, threshold=plan.threshold, report=report)


def defined_by(plan: AuditPlan, work: Work) -> dict[str, Any]:
    """Everything that a piece of work depends on, as plain values."""
    scenario = plan.scenario
    return {
        "version": leakgauge.__version__,
        "setup": scenario.document,
        "content": scenario.fingerprint,
        "defences": list(map(repr, plan.chains[work.title])),
        "knows": work.knows,
        "attack": repr(plan.attacks[work.attack]),
        "client": work.client,
        "threshold": plan.threshold,
    }
