"""The time budget of an audit, which limits the number of steps that attacks take."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leakgauge.attacks import registry
from leakgauge.attacks.spec import Cost
from leakgauge.core.errors import InvalidInput, LeakgaugeError, shown
from leakgauge.core.observation import Observation
from leakgauge.federation.defence import clients_in_a_sum
from leakgauge.runtime.display import duration
from leakgauge.runtime.threads import one_thread
from leakgauge.workflows.audit.attackers import Attacker

if TYPE_CHECKING:
    from leakgauge.workflows.audit.plan import AuditPlan, Work

#: The seconds that a default audit may take for each defence.
DEFAULT_BUDGET = 240.0
#: The assumed seconds of an attack that cannot estimate its own time.
USUAL = {Cost.INSTANT: 1.0, Cost.SECONDS: 20.0, Cost.MINUTES: 120.0, Cost.HOURS: 7200.0}
#: The longest budget in seconds, which is 30 days.
LONGEST = 30 * 24 * 3600.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_FORM = re.compile(r"^(?P<number>\d+(\.\d+)?)\s*(?P<unit>s|m|min|h|)$")


def read_duration(value: Any, where: str) -> float | None:
    """Return a length of time in seconds, or ``None`` for the word ``"none"``.

    >>> read_duration("10m", "--budget")
    600.0

    Args:
        value: A number of seconds, or a text such as ``"90s"``, ``"10m"``, ``"1.5h"`` or ``"none"``.
        where: The place of the value for error messages.
    """
    if value is None or value == "none":
        return None
    match = _FORM.match(str(value).strip())
    if match is None or isinstance(value, bool) or float(match["number"]) <= 0:
        raise InvalidInput(f"{where} must be a length of time such as 90s, 10m or 1h, or none, not {shown(value)}")
    seconds = float(match["number"]) * _UNITS[match["unit"]]
    if seconds > LONGEST:
        raise InvalidInput(f"{where} must be at most {duration(LONGEST)}, or none for no limit, not {shown(value)}")
    return seconds


@dataclass(frozen=True)
class Forecast:
    """The expected run time of the attacks of an audit.

    Args:
        seconds: A dictionary from the name of each attack to the expected seconds for one client.
        jobs: The number of attacks that run at a time.
        budget: The seconds that the audit may take, or ``None`` for no limit.
        weights: A dictionary from the title of each defence to the number of clients whose messages are added to one
            message, as in secure aggregation. An attack on this message takes longer by this factor.
    """

    seconds: Mapping[str, float]
    jobs: int
    budget: float | None = None
    weights: Mapping[str, int] = field(default_factory=dict)

    def cost(self, work: Work) -> float:
        """Return the expected run time in seconds of one attack on one client."""
        weight = 1 if work.control else self.weights.get(work.defence, 1)
        return self.seconds[work.attack] * weight * float(2**work.attempt)

    def total(self, works: Sequence[Work]) -> float:
        """Return the expected seconds until all these attacks are done."""
        costs = [self.cost(work) for work in works]
        return max([sum(costs) / self.jobs, *costs], default=0.0)

    def shares(self, works: Sequence[Work], spent: float = 0.0) -> dict[Work, float]:
        """Return a dictionary from each attack to the share of its steps for which the budget has time.

        The remaining time is divided equally. If an attack needs less than its part, the other attacks get the rest.

        Args:
            works: The attacks that are to run.
            spent: The seconds of the budget that are already spent.
        """
        costs = {work: self.cost(work) for work in works}
        if self.budget is None:
            return dict.fromkeys(works, 1.0)
        most = equal_limit(list(costs.values()), self.jobs * max(0.0, self.budget - spent))
        return {work: 1.0 if cost <= most else most / cost for work, cost in costs.items()}

    def sentence(self, works: Sequence[Work]) -> str:
        """Return a sentence for people about the expected time of these attacks."""
        whole = self.total(works)
        cores = f"{self.jobs} attack{'s' if self.jobs > 1 else ''} at a time"
        if self.budget is None:
            return f"This takes about {duration(whole)} ({cores}). There is no budget."
        if whole <= self.budget:
            return f"This takes about {duration(whole)} ({cores}), within the budget of {duration(self.budget)}."
        shares = self.shares(works)
        least = {work.attack: share for work, share in shares.items() if share < 1}
        shortened = ", ".join(f"{name} to {share:.0%} of its steps" for name, share in least.items())
        return (
            f"The budget is {duration(self.budget)}. Without a budget this takes about {duration(whole)} ({cores}). "
            f"The budget shortens {shortened}."
        )


def equal_limit(costs: Sequence[float], available: float) -> float:
    """Return the limit for which costs add up to a given sum, after each larger cost is reduced to the limit.

    >>> equal_limit([1.0, 10.0, 10.0], 11.0)
    5.0

    Args:
        costs: The costs without a limit.
        available: The sum of the costs after the reduction.
    """
    left, rest = available, sorted(costs)
    while rest and rest[0] * len(rest) <= left:
        left -= rest.pop(0)
    return left / len(rest) if rest else math.inf


def forecast(plan: AuditPlan, jobs: int) -> Forecast:
    """Measure one step of each attack on the first client, and return the expected run time of the attacks.

    Args:
        plan: The plan of the audit.
        jobs: The number of attacks that run at a time.
    """
    observation, _ = plan.scenario.observe(0)
    with one_thread():
        seconds = {name: _expected(attacker, observation) for name, attacker in plan.attacks.items()}
    weights = {title: clients_in_a_sum(chain) for title, chain in plan.chains.items()}
    return Forecast(seconds, jobs, plan.budget, weights)


def _expected(attacker: Attacker, observation: Observation) -> float:
    estimate = None
    if attacker.recovers == "samples":
        try:
            estimate = registry.build(attacker.name, **attacker.options).forecast(observation)
        except (LeakgaugeError, RuntimeError):  # the attack itself will report this problem
            estimate = None
    return USUAL[registry.ATTACKS[attacker.name].cost] if estimate is None else float(estimate)
