"""The time budget of an audit, which limits the steps and the time of its attacks.

1. Before an attack starts, its number of steps is reduced such that its expected time fits into its part of the budget.
2. An attack that takes longer than its part of the remaining time is ended, and its best result so far counts. No
   attack runs on after the end of the budget.

The expected time is measured on this machine, so the number of steps of a shortened attack depends on the machine. If
all attacks fit into the budget, only the second rule could make a result depend on the machine. The part of an attack
is therefore its expected time and an equal part of the time that nobody needs. It is shorter than the expected time
only if earlier attacks took longer than expected.

A result with fewer steps or less time than the attack needs is marked as cut short. It never supports a negative
verdict.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leakgauge.attacks import registry
from leakgauge.attacks.base import Attack
from leakgauge.attacks.spec import Cost
from leakgauge.core.errors import InvalidInput, shown
from leakgauge.core.observation import Observation
from leakgauge.core.progress import TimeLimit
from leakgauge.federation.defence import clients_in_a_sum
from leakgauge.runtime.display import duration
from leakgauge.runtime.threads import one_thread
from leakgauge.workflows.audit.attackers import Attacker

if TYPE_CHECKING:
    from leakgauge.workflows.audit.plan import AuditPlan, Work

#: The seconds that a default audit may take for each defence.
DEFAULT_BUDGET = 240.0
#: The share of its part of the budget that the steps of a shortened attack are planned to take. The rest is for errors
#: of the forecast, because an optimisation that is ended by time misses the small steps at its end.
PLANNED = 0.9
#: The assumed seconds of an attack that cannot estimate its own time.
USUAL = {Cost.INSTANT: 0.25, Cost.SECONDS: 20.0, Cost.MINUTES: 120.0, Cost.HOURS: 7200.0}
#: An exact attack is tried on the first client for this many seconds at most. The time of most of them depends on the
#: message, and not only on the sizes of layers.
TRIED = 4.0
#: The assumed seconds of an exact attack that takes longer than the trial and has no own estimate, as a multiple of the
#: trial.
LONGER = 3.0
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
class Allowance:
    """The part of the budget that one attack on one client gets.

    Args:
        share: The share of its steps that the attack takes.
        expected: The seconds that these steps are expected to take.
        queue: The expected seconds of this attack and of all attacks that start after it.
        waiting: The number of these attacks.
        jobs: The number of attacks that run at a time.
        deadline: The time at which the budget ends, in seconds since 1970. ``None`` means no limit.
    """

    share: float = 1.0
    expected: float = 0.0
    queue: float = 0.0
    waiting: int = 1
    jobs: int = 1
    deadline: float | None = None

    def seconds(self) -> float | None:
        """Return the seconds after which the attack is ended if it starts now, or ``None`` for no limit."""
        if self.deadline is None:
            return None
        left = max(0.0, self.deadline - time.time())
        spare = self.jobs * left - self.queue
        if spare >= 0:
            return min(left, self.expected + spare / self.waiting)
        return min(left, self.expected * self.jobs * left / self.queue)


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
        return self.seconds[work.attack] * self.weight(work) * float(2**work.attempt)

    def weight(self, work: Work) -> int:
        """Return the number of clients whose samples the message of an attacked client holds."""
        return 1 if work.control else self.weights.get(work.defence, 1)

    def total(self, works: Sequence[Work]) -> float:
        """Return the expected seconds until all these attacks are done."""
        costs = [self.cost(work) for work in works]
        return max([sum(costs) / self.jobs, *costs], default=0.0)

    def allowances(self, works: Sequence[Work], spent: float = 0.0) -> dict[Work, Allowance]:
        """Return a dictionary from each attack to its part of the budget.

        The remaining time is divided equally. If an attack needs less than its part, the other attacks get the rest.

        Args:
            works: The attacks that are to run.
            spent: The seconds of the budget that are already spent.
        """
        if self.budget is None:
            return dict.fromkeys(works, Allowance())
        costs = {work: self.cost(work) for work in works}
        left = max(0.0, self.budget - spent)
        deadline = time.time() + left
        most = PLANNED * min(left, equal_limit(list(costs.values()), self.jobs * left))
        shares = {work: 1.0 if cost * PLANNED <= most else most / cost for work, cost in costs.items()}
        queue, allowances = sum(shares[work] * costs[work] for work in works), {}
        for number, work in enumerate(works):
            expected = shares[work] * costs[work]
            allowances[work] = Allowance(
                shares[work], expected, max(queue, expected), len(works) - number, self.jobs, deadline
            )
            queue -= expected
        return allowances

    def sentence(self, works: Sequence[Work], exact: Sequence[Work] = (), controls: Sequence[Work] = ()) -> str:
        """Return sentences for people about the expected time of an audit.

        Args:
            works: The attacks on the set-up itself.
            exact: Those of these attacks after which the others are left out, if they find every sample.
            controls: The attacks on positive controls, which run only if an attack finds nothing.
        """
        whole = self.total(works)
        cores = f"{self.jobs} attack{'s' if self.jobs > 1 else ''} at a time"
        if self.budget is None:
            main = f"This takes about {duration(whole)} ({cores}). There is no budget."
        elif whole <= self.budget:
            main = f"This takes about {duration(whole)} ({cores}), within the budget of {duration(self.budget)}."
        else:
            main = (
                f"The budget is {duration(self.budget)}. Without a budget this takes about {duration(whole)} ({cores})."
                f" The budget shortens {self._shortened(works)}."
            )
        if exact and len(exact) < len(works):
            main += f" If the exact attacks find every sample, it takes about {duration(self.total(exact))}."
        if controls and (self.budget is None or whole < self.budget):
            more = self.total(controls) if self.budget is None else min(self.total(controls), self.budget - whole)
            main += f" If attacks find nothing, their positive controls take up to {duration(more)} more."
        return main

    def _shortened(self, works: Sequence[Work]) -> str:
        allowances = self.allowances(works)
        least = {work.attack: allowance.share for work, allowance in allowances.items() if allowance.share < 1}
        return ", ".join(f"{name} to {share:.0%} of its steps" for name, share in least.items())


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


def forecast(plan: AuditPlan, jobs: int, check: Callable[[], None] = lambda: None) -> Forecast:
    """Measure one step of each attack on the first client, and return the expected run time of the attacks.

    Args:
        plan: The plan of the audit.
        jobs: The number of attacks that run at a time.
        check: A function that raises ``KeyboardInterrupt`` if Ctrl-C was pressed. It is called at each report and after
            each attack, because attacks catch this exception.
    """
    observation, _ = plan.scenario.observe(0)
    with one_thread():
        seconds = {}
        for name, attacker in plan.attacks.items():
            seconds[name] = _expected(attacker, observation, plan.scenario.seed, check)
            check()
    weights = {title: clients_in_a_sum(chain) for title, chain in plan.chains.items()}
    return Forecast(seconds, jobs, plan.budget, weights)


def _expected(attacker: Attacker, observation: Observation, seed: int, check: Callable[[], None]) -> float:
    estimate = None
    if attacker.recovers == "samples":
        try:
            attack = registry.build(attacker.name, **attacker.options)
            if registry.ATTACKS[attacker.name].exact:
                return _tried(attack, observation, seed, check)
            estimate = attack.forecast(attack.readable(observation))
            if estimate is not None and attacker.needs_public:
                estimate *= 2  # the control with shuffled messages
        except Exception:  # the attack itself will report this problem, which may come from the user's model
            estimate = None
    return USUAL[registry.ATTACKS[attacker.name].cost] if estimate is None else float(estimate)


def _tried(attack: Attack, observation: Observation, seed: int, check: Callable[[], None] = lambda: None) -> float:
    """Return the expected seconds of an exact attack, which is tried for a moment on the first client.

    An attack that is still running takes between the trial and its own estimate, which is an upper limit. The result is
    their geometric mean. Without an own estimate, the steps that are left are expected to take as long as those so far.
    """
    began, share = time.perf_counter(), 0.0

    def record(step: int, total: int | None, loss: float) -> None:
        nonlocal share
        share = min(1.0, step / total) if total else 0.0
        check()

    try:
        result = attack(observation, seed=seed, progress=TimeLimit(record, TRIED))
        finished = result.outcome.kind != "interrupted"
    except KeyboardInterrupt:  # the time limit ended the attack before it had a result
        finished = False
    spent = time.perf_counter() - began
    if finished:
        return spent
    estimate = attack.forecast(attack.readable(observation))
    if estimate is None:
        return min(LONGEST, spent / share) if share > 0 else max(spent, LONGER * TRIED)
    return max(spent, math.sqrt(TRIED * estimate))
