"""The plan of a frontier, which lists the defences to compare and how they are measured.

The TOML file has the tables of :mod:`leakgauge.workflows.scenario` and one more table:

======================  ===========================================================================================
``[frontier]``          ``attack`` (the name of the attack, or ``"attribute_inference"`` for a sensitive column),
                        ``options`` (of the attack), ``clients`` (the number of clients to attack), ``threshold`` (the
                        PSNR in dB above which a sample counts as recovered), ``federation`` (the number of clients that
                        train the model), ``federation_samples`` (the number of samples of each of these clients),
                        ``federation_lr`` (the learning rate of these clients), ``rounds`` (the number of rounds of
                        training), ``test`` (the number of samples that test the model), ``sources`` (the name of an
                        attack that infers which client holds a record, such as ``"source_by_equations"``)
``[[defence]]``         ``clients`` (the number of clients of a round, if it differs from that in ``[frontier]``. The
                        number of clients that train changes by the same factor)
======================  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from leakgauge.attacks import registry
from leakgauge.core.errors import InvalidInput, shown
from leakgauge.core.limits import RECIPE
from leakgauge.federation.defence import Defence, clients_in_a_sum
from leakgauge.workflows.audit.attackers import Attacker, read_attacker
from leakgauge.workflows.documents import CLIENTS, DECIBELS, ROUNDS, SAMPLES, Keys
from leakgauge.workflows.owners import OwnerAttacker, check_sums, read_owner_attacker
from leakgauge.workflows.public_samples import reserved
from leakgauge.workflows.result import measuring
from leakgauge.workflows.scenario import Scenario
from leakgauge.workflows.scenario_document import load_parts, read_chains, read_scenario

FRONTIER: Keys = {
    "attack": (str,), "options": (dict,), "clients": CLIENTS, "threshold": DECIBELS, "federation": CLIENTS,
    "federation_samples": SAMPLES, "federation_lr": RECIPE["lr"], "rounds": ROUNDS, "test": SAMPLES, "sources": (str,),
}  # fmt: skip
#: The attack of an attacker with public data.
PUBLIC_ATTACK = "learned_inversion"
#: The key of ``[[defence]]`` that only a frontier reads.
COHORT: Keys = {"clients": CLIENTS}


@dataclass(frozen=True)
class FrontierPlan:
    """The plan of a frontier, which lists the defences to compare and how they are measured.

    Args:
        scenario: The model, the data, the training and the attacker's knowledge.
        attack: The attack with its options.
        chains: A dictionary from each title to the defences that a client applies one after another.
        clients: The number of clients to attack.
        threshold: The PSNR in dB above which a sample counts as recovered.
        federation: The number of clients that train the model.
        federation_samples: The number of samples of each client that trains.
        federation_lr: The learning rate of the clients that train. The default is that of the attacked clients.
        rounds: The number of rounds of training.
        test: The number of test samples.
        sources: The attack on the owners of records, if there is one.
        cohorts: A dictionary from titles to the number of clients of a round, where it differs from ``clients``.
        public: The attack of an attacker with public data, if ``[attacker] public`` grants such data. Its results stand
            beside those of the attack without public data.
    """

    scenario: Scenario
    attack: Attacker
    chains: dict[str, tuple[Defence, ...]]
    clients: int = 4
    threshold: float = 20.0
    federation: int = 20
    federation_samples: int = 50
    federation_lr: float | None = None
    rounds: int = 20
    test: int = 1000
    sources: OwnerAttacker | None = None
    cohorts: Mapping[str, int] = field(default_factory=dict)
    public: Attacker | None = None

    def clients_of(self, title: str) -> int:
        """Return the number of clients of a round, with a defence."""
        return self.cohorts.get(title, self.clients)

    def federation_of(self, title: str) -> int:
        """Return the number of clients that train, which changes with the number of clients of a round."""
        return max(1, round(self.federation * self.clients_of(title) / self.clients))

    @property
    def classifies(self) -> bool:
        """Whether the model is a classifier. The utility of a classifier is its accuracy."""
        return self.scenario.dataset.spec.classes is not None

    def definition(self, title: str) -> dict[str, Any]:
        """Return everything that the measurement of one defence depends on, as a plain dictionary."""
        others = {"scenario", "attack", "chains", "sources", "cohorts", "public"}
        numbers = {item.name for item in fields(self)} - others
        return {
            **self.scenario.document,
            **{name: getattr(self, name) for name in numbers},
            "content": self.scenario.fingerprint,
            "attack": repr(self.attack),
            "sources": repr(self.sources),
            "public": repr(self.public),
            "cohort": self.clients_of(title),
            "defences": list(map(repr, self.chains[title])),
            "title": title,
        }


@measuring()
def read_frontier(document: Mapping[str, Any], where: str) -> FrontierPlan:
    """Read the plan of a frontier from the content of a TOML file.

    Mistakes in the plan raise an error before any model is trained.

    Args:
        document: The content of the file as a dictionary.
        where: The name of the file for error messages.
    """
    rest = {key: value for key, value in document.items() if key != "defence"}
    scenario = read_scenario(rest, where, {"frontier": FRONTIER})
    table = dict(rest.get("frontier", {}))
    name, options = table.pop("attack", "inverting_gradients"), table.pop("options", {})
    load_parts(scenario, where)
    attack = read_attacker(name, options, scenario.dataset.sensitive, f"{where}: [frontier] attack")
    sources = table.pop("sources", None)
    owners = None if sources is None else read_owner_attacker(sources, f"{where}: [frontier] sources")
    tables = document.get("defence", [])
    chains = read_chains(tables, scenario, where, COHORT)
    if not chains:
        raise InvalidInput(f"{where}: there is no [[defence]] to try. Add some, and one with chain = [] for none")
    given = zip(chains, tables, strict=True)
    cohorts = {title: defence["clients"] for title, defence in given if "clients" in defence}
    public = None
    if scenario.public is not None and not attack.needs_public and attack.recovers == "samples":
        public = Attacker(PUBLIC_ATTACK, {})
    plan = FrontierPlan(scenario, attack, chains, sources=owners, cohorts=cohorts, public=public, **table)
    _check_plan(plan, where)
    return plan


def _check_plan(plan: FrontierPlan, where: str) -> None:
    """Raise an error if the data is too small, or if an attack does not apply to the message of the first client."""
    scenario = plan.scenario
    for title, chain in plan.chains.items():
        others = plan.federation_of(title) * plan.federation_samples + plan.test + reserved(scenario)
        scenario.check_size(plan.clients_of(title), [chain], others=others)
        if plan.sources is not None:
            check_sums(plan.clients_of(title), clients_in_a_sum(chain), f"{where}: {shown(title)}")
    # The first client's round refuses what the model, the recipe or a defence does not allow.
    undefended = scenario.first_message()
    scenario.check_attackable(undefended, [plan.attack.name])
    attacks = {"attack": plan.attack.name}
    attacks |= {key: one.name for key, one in (("sources", plan.sources), ("public", plan.public)) if one is not None}
    for title, chain in plan.chains.items():
        message = scenario.observe(0, chain, participations=plan.rounds)[0] if chain else undefended
        for key, name in attacks.items():
            fit = registry.ATTACKS[name].fits(message)
            if not fit.applies:
                raise InvalidInput(f"{where}: [frontier] {key}: {name} does not apply to {shown(title)}: {fit.reason}")
