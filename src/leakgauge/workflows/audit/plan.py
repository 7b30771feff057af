"""The plan of an audit, which is read from a TOML document.

The document has the tables of :mod:`leakgauge.workflows.scenario` and one more table, which may be left out:

======================  ===========================================================================================
``[audit]``             ``attacks`` (a list of names, or of tables with a name and options, by default all attacks that
                        fit), ``clients`` (the number of clients to attack), ``threshold`` (the PSNR in dB above which a
                        sample counts as recovered), ``budget`` (the time that the audit may take, such as ``"10m"``,
                        or ``"none"``)
======================  ===========================================================================================

If the document has no table ``[[defence]]``, clients use no defence.

An attack that finds nothing is also run on easier versions of the set-up, which are called positive controls. If the
attack fails on the positive controls too, it is too weak to support the verdict "nothing above chance".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from leakgauge.attacks import registry
from leakgauge.attacks.spec import Cost
from leakgauge.core.errors import InvalidInput, LeakgaugeError, shown
from leakgauge.core.observation import Observation
from leakgauge.evaluation.bounds import Bound
from leakgauge.evaluation.recipe_check import RecipeCheck
from leakgauge.evaluation.support import TARGETS_UNKNOWN, control_sizes
from leakgauge.federation.defence import Defence
from leakgauge.workflows.audit.attackers import Attacker, read_attacker
from leakgauge.workflows.audit.budget import DEFAULT_BUDGET, read_duration
from leakgauge.workflows.audit.ceiling import bound_on
from leakgauge.workflows.audit.first_look import FirstLook, first_look
from leakgauge.workflows.audit.ladder import Rung, rungs_of
from leakgauge.workflows.audit.self_test import self_test, sentence_of
from leakgauge.workflows.determined import may_determine
from leakgauge.workflows.documents import CLIENTS, DECIBELS, NUMBER, Keys
from leakgauge.workflows.public_samples import default_public, reserved
from leakgauge.workflows.result import measuring
from leakgauge.workflows.scenario import Scenario
from leakgauge.workflows.scenario_document import load_parts, read_chains, read_scenario

#: The number of clients of a positive control.
CONTROL_CLIENTS = 2
AUDIT: Keys = {"attacks": (list,), "clients": CLIENTS, "threshold": DECIBELS, "budget": (str, *NUMBER)}
#: The name of the version of a set-up without a defence.
UNDEFENDED = "no defence"


@dataclass(frozen=True)
class Work:
    """One attack on one client.

    Args:
        defence: The title of the defence.
        attack: The name of the attack.
        knows_defence: Whether the attacker knows the defence.
        client: The index of the client.
        control: The name of the attacked version of the set-up. It is an easier version (a positive control), or a
            version with one changed value (a rung of the ladder). The name is empty if the audited set-up itself is
            attacked.
        attempt: The number of earlier attempts at this client with the same attack.
    """

    defence: str
    attack: str
    knows_defence: bool
    client: int
    control: str = ""
    attempt: int = 0

    def __str__(self) -> str:
        if self.control:
            return f"{self.attack}, version: {self.control}, client {self.client}"
        known = ", defence known" if self.knows_defence else ""
        again = f", attempt {self.attempt + 1}" if self.attempt else ""
        return f"{self.attack}, {self.defence}{known}, client {self.client}{again}"


@dataclass(frozen=True)
class AuditPlan:
    """The plan of an audit, with its set-up, attacks, defences and budget.

    Args:
        scenario: The set-up.
        attacks: A dictionary from names to attackers.
        chains: A dictionary from titles to chains of defences. A chain holds the defences that one client applies one
            after another. Each chain is audited separately.
        first_look: The estimate of the risk before any attack.
        clients: The number of clients to attack.
        threshold: The PSNR in dB above which a sample counts as recovered.
        adaptive: The pairs of an attack and a defence for which the attack changes if the attacker knows the defence.
        controls: A dictionary from names to positive controls, which are easier versions of the set-up without a
            defence.
        portfolio: Whether the audit, and not the user, chose the attacks. The audit then skips attacks on samples that
            an exact attack has already recovered, and repeats failed attacks whose loss was still falling.
        budget: The seconds that the audit may take, or ``None`` for no limit.
        underdetermined: Whether the message holds fewer numbers than the client's samples, so that no attack can
            recover all of the samples.
        self_test: Whether the simulation of the first client can be repeated.
    """

    scenario: Scenario
    attacks: dict[str, Attacker]
    chains: dict[str, tuple[Defence, ...]]
    first_look: FirstLook
    clients: int = 4
    threshold: float = 20.0
    adaptive: frozenset[tuple[str, str]] = frozenset()
    controls: Mapping[str, Scenario] = field(default_factory=dict)
    portfolio: bool = False
    budget: float | None = None
    underdetermined: bool = False
    self_test: RecipeCheck | None = None

    @property
    def self_tested(self) -> str:
        """The result of the self-test as a sentence. The text is empty if there was none."""
        return "" if self.self_test is None else sentence_of(self.self_test)

    @property
    def work(self) -> list[Work]:
        """All attacks on the set-up itself, with cheap attacks first."""
        return [
            Work(defence, name, knows_defence, client)
            for name in sorted(self.attacks, key=lambda name: registry.ATTACKS[name].order)
            for defence in self.chains
            for knows_defence in ((False, True) if (name, defence) in self.adaptive else (False,))
            for client in range(self.clients)
        ]

    def is_exact(self, name: str) -> bool:
        """Return whether an attack solves equations for the samples and recognises its own success."""
        return registry.ATTACKS[name].exact

    def exact_attacks(self, cost: Cost) -> list[Work]:
        """Return the runs of all exact attacks of one cost class on the set-up itself."""
        return [work for work in self.work if self.is_exact(work.attack) and registry.ATTACKS[work.attack].cost is cost]

    def controls_of(self, name: str) -> list[Work]:
        """Return the runs of an attack on easier versions of the set-up (positive controls).

        Only attacks that recover samples have such runs.
        """
        return [work for work in self.possible_controls if work.attack == name and self.applies(work)]

    @property
    def exact_work(self) -> list[Work]:
        """The attacks after which the audit leaves out the others, if they find every sample of a client."""
        return [work for work in self.work if self.portfolio and self.is_exact(work.attack)]

    @property
    def possible_controls(self) -> list[Work]:
        """All runs of attacks on positive controls that the audit may need."""
        names = [name for name, attacker in self.attacks.items() if attacker.recovers == "samples"]
        clients = range(min(self.clients, CONTROL_CLIENTS))
        return [
            Work(UNDEFENDED, name, False, client, control)
            for name in names
            for control in self.controls
            for client in clients
        ]

    def applies(self, work: Work) -> bool:
        """Return whether an attack can be run on a version of the set-up, such as the version with more samples."""
        try:
            message, _ = self.scenario_of(work).observe(work.client, self.chain_of(work))
        except LeakgaugeError:
            return False
        return registry.ATTACKS[work.attack].fits(message).applies

    @cached_property
    def bounds(self) -> dict[str, Bound]:
        """A dictionary from titles of defences to proven limits on the success of every attack.

        Most defences have no such proof, and are left out.
        """
        found = {title: bound_on(self.scenario, chain) for title, chain in self.chains.items() if chain}
        return {title: bound for title, bound in found.items() if bound is not None}

    @cached_property
    def determined(self) -> dict[str, str]:
        """A dictionary from the titles of defences whose messages may determine the samples to the reason."""
        reasons = {title: may_determine(self.scenario, chain) for title, chain in self.chains.items()}
        return {title: reason for title, reason in reasons.items() if reason}

    @cached_property
    def ladder(self) -> dict[str, Rung]:
        """A dictionary from names to versions of the set-up, each with one changed value (rungs of the ladder)."""
        return rungs_of(self.scenario)

    def scenario_of(self, work: Work) -> Scenario:
        """Return the set-up that an attack is run on. It may be a changed version of the audited set-up."""
        if work.control in self.controls:
            return self.controls[work.control]
        return self.ladder[work.control].scenario if work.control else self.scenario

    def chain_of(self, work: Work) -> tuple[Defence, ...]:
        """Return the defences of the attacked client. A positive control (an easier set-up) has no defences."""
        if work.control in self.controls:
            return ()
        return self.ladder[work.control].chain if work.control else self.chains[work.defence]

    def definition(self, work: Work) -> dict[str, Any]:
        """Return all values that the result of one attack on one client depends on, as a key of the cache."""
        scenario = self.scenario_of(work)
        return {
            "scenario": scenario.document,
            "content": scenario.fingerprint,
            "defences": list(map(repr, self.chain_of(work))),
            "knows_defence": work.knows_defence,
            "attack": repr(self.attacks[work.attack]),
            "client": work.client,
            "attempt": work.attempt,
            "threshold": self.threshold,
        }


@measuring()
def read_audit(document: Mapping[str, Any], where: str) -> AuditPlan:
    """Read the plan from a document.

    If a part of the plan cannot work, an error is raised. No attack is run.

    Args:
        document: The document as a dictionary.
        where: The name of the document for error messages.
    """
    rest = {key: value for key, value in document.items() if key != "defence"}
    scenario = read_scenario(rest, where, {"audit": AUDIT})
    table = dict(rest.get("audit", {}))
    load_parts(scenario, where)
    chains = read_chains(document.get("defence", []), scenario, where) or {"no defence": ()}
    clients = table.get("clients", AuditPlan.clients)
    scenario = default_public(scenario, clients, chains.values())
    scenario.check_size(clients, chains.values(), others=reserved(scenario))
    # The first client's round refuses what the model or the recipe does not allow.
    defended = {title: scenario.observe(0, chain, knows_defence=True)[0] for title, chain in chains.items() if chain}
    message = scenario.first_message()
    look = first_look(message)
    listed = table.pop("attacks", None)
    attacks = _read_attacks(listed, look, scenario.dataset.sensitive, where)
    scenario.check_attackable(message, attacks)
    adaptive = {
        (name, title)
        for name, attacker in attacks.items()
        for title, observation in defended.items()
        if scenario.attacker.get("knows_defence", True) and attacker.adapts(observation)
    }
    default = DEFAULT_BUDGET * len(chains) if listed is None else None
    budget = read_duration(table.pop("budget"), f"{where}: [audit] budget") if "budget" in table else default
    return AuditPlan(
        scenario,
        attacks,
        chains,
        look,
        adaptive=frozenset(adaptive),
        controls=easier_versions(scenario, defended=all(chains.values())),
        portfolio=listed is None,
        budget=budget,
        underdetermined=_underdetermined(message),
        self_test=self_test(scenario),
        **table,
    )


def easier_versions(scenario: Scenario, *, defended: bool) -> dict[str, Scenario]:
    """Return a dictionary from names to easier versions of a set-up. A strong attack should succeed on these versions.

    A version that cannot be simulated is left out, such as batch norm in train mode with a single sample.

    Args:
        scenario: The set-up.
        defended: Whether every client of the audit uses a defence. If so, the set-up without a defence is one of the
            easier versions.
    """
    versions = {UNDEFENDED: scenario} if defended else {}
    if scenario.targets_unknown and scenario.samples > 1:
        alone = scenario.version(samples=1)
        versions |= {TARGETS_UNKNOWN: alone} if _can_be_simulated(alone) else {}
    granted = [*scenario.attacker.get("granted", []), *([] if scenario.labels_granted else ["labels"])]
    for name, samples in control_sizes(scenario.samples).items():
        smaller = scenario.version(granted=granted, samples=samples)
        if smaller != scenario and _can_be_simulated(smaller):
            versions[name] = smaller
    return versions


def _can_be_simulated(scenario: Scenario) -> bool:
    try:
        scenario.observe(0)
    except InvalidInput:
        return False
    return True


def _underdetermined(message: Observation) -> bool:
    """Return whether the message holds fewer numbers than all of the client's samples together."""
    numbers = sum(value.numel() for value in message.model.parameters() if value.requires_grad)
    samples = message.training.samples
    return samples is not None and numbers < samples * math.prod(message.data.shape)


def _read_attacks(listed: list[Any] | None, look: FirstLook, sensitive: str | None, where: str) -> dict[str, Attacker]:
    where = f"{where}: [audit] attacks"
    if listed is None:
        listed = _default_attacks(look, sensitive)
        if not listed:
            lacking = look.missing or "enough"
            if "embedding_read_off" in look.refused and look.looks_up:
                raise InvalidInput(
                    f"{where}: no attack can be tried, because the samples are looked up in an embedding, and "
                    f"embedding_read_off does not apply: {look.refused['embedding_read_off']}"
                )
            raise InvalidInput(
                f"{where}: no attack can be tried, because the attacker does not know {lacking}. Grant it, for example "
                'with [attacker] granted = ["labels"], or name the attacks'
            )
    elif not listed:
        raise InvalidInput(f"{where} is empty. Leave it out to run the attacks that fit")
    attackers: dict[str, Attacker] = {}
    for item in listed:
        options = dict(item) if isinstance(item, dict) else {"name": item}
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise InvalidInput(f"{where} must hold names of attacks, or tables with a name, not {shown(item)}")
        if name in attackers:
            raise InvalidInput(f"{where} lists {name!r} twice. List it once, or audit the other options separately")
        spec = registry.ATTACKS.get(name)
        defaults = spec.audit if spec is not None and spec.audit is not None else {}
        attacker = read_attacker(name, options or defaults, sensitive, where)
        if name in look.refused:
            raise InvalidInput(f"{where}: {name} does not apply here: {look.refused[name]}")
        attackers[name] = attacker
    return attackers


def _default_attacks(look: FirstLook, sensitive: str | None) -> list[str]:
    """Return the names of the attacks that an audit runs by default and that fit the message.

    Optimisation attacks are left out if the attacker lacks knowledge that they need, such as a regression's targets.
    """
    specs = [spec for spec in registry.specs(reads="update") if spec.audit is not None and spec.name in look.applies]
    return [
        spec.name
        for spec in specs
        if (spec.recovers == "samples" and (spec.exact or not look.missing))
        or (spec.recovers != "samples" and sensitive)
    ]
