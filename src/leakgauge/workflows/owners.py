"""The attacker who infers which client of a round holds a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from leakgauge.attacks import registry
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation.chance import Chance
from leakgauge.evaluation.inferred import share_measure
from leakgauge.evaluation.support import Evidence, with_support
from leakgauge.evaluation.verdict import Finding, Verdict, judge_share

METRIC = "source_accuracy"
#: Attacks on owners that need a rebuilt model of each client, and so many rounds.
NEEDS_MODELS = ("source_by_loss",)
#: The reason why nothing is inferred from a single sum.
ONE_SUM = "The server sees one sum of all clients. It does not depend on which of these clients holds a record."


@dataclass(frozen=True, repr=False)
class OwnerAttacker:
    """An attack that infers the owners of records from the messages of one round.

    The attacker knows the records of all clients of the round, and does not know which record belongs to which client.
    If the server sees only sums of messages, the attacker infers the sum, and then guesses one of its clients.

    Args:
        name: The name of the attack.
        options: The options that differ from the attack's defaults.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return repr(registry.build(self.name, **self.options))

    def __call__(
        self, parts: Sequence[tuple[Observation, Truth]], in_a_sum: int, setup: str, report: Report
    ) -> Finding:
        """Infer the owner of every record, and score the result.

        Args:
            parts: The message and the records of each client, or of each sum of clients.
            in_a_sum: The number of clients in a sum. It is 1 if the server sees the message of each client.
            setup: The title of the set-up.
            report: The function that is called after each step.
        """
        sizes = [len(truth) for _, truth in parts]
        right, verdict = [torch.ones(sizes[0])], Verdict.NOTHING_ABOVE_CHANCE
        if len(parts) > 1:
            attack = registry.build(self.name, **self.options)
            inputs, targets = (
                torch.cat([getattr(truth, name) for _, truth in parts]) for name in ("inputs", "targets")
            )
            choice = attack([[message] for message, _ in parts], inputs, targets, report=report).choice.cpu()
            right = [own == place for place, own in enumerate(choice.split(sizes))]
            verdict = judge_share(right, 1 / len(parts))
        measure = share_measure(METRIC, right, Chance(1 / len(parts), "one of the clients of the round, at random"))
        finding = Finding(self.name, setup, {METRIC: _of_a_client(measure, in_a_sum, guess=len(parts) == 1)}, verdict)
        return with_support(finding, Evidence({}, proof=ONE_SUM if len(parts) == 1 else ""))


def _of_a_client(measure: Measure, in_a_sum: int, *, guess: bool) -> Measure:
    """Return the share of records whose client is found, from the share of records whose sum is found.

    Args:
        measure: The share of records whose sum is found.
        in_a_sum: The number of clients in a sum, of which the attacker guesses one.
        guess: Whether there is only one sum. Its share is then certain, and has no interval.
    """
    low, high, chance = measure.low or 0.0, measure.high or 0.0, measure.chance or 0.0
    return replace(
        measure,
        value=measure.value / in_a_sum,
        low=None if guess else low / in_a_sum,
        high=None if guess else high / in_a_sum,
        chance=chance / in_a_sum,
        worst=(measure.worst or 0.0) / in_a_sum,
    )


def read_owner_attacker(name: str, where: str) -> OwnerAttacker:
    """Return the attacker that runs the named attack on the messages of one round.

    Args:
        name: The name of the attack.
        where: The place of the name in the configuration, for error messages.
    """
    known = [spec.name for spec in registry.specs(recovers="source") if spec.name not in NEEDS_MODELS]
    if name not in known:
        raise UnknownName(f"attack on the owners of records ({where})", name, known)
    return OwnerAttacker(name)


def check_sums(clients: int, in_a_sum: int, where: str) -> None:
    """Raise an error if the clients of a round cannot be divided into sums of equal size.

    Args:
        clients: The number of clients of the round.
        in_a_sum: The number of clients in a sum.
        where: The name of the set-up for error messages.
    """
    if clients % in_a_sum:
        raise InvalidInput(
            f"{where}: {clients} clients cannot be divided into sums of {in_a_sum}. Choose a number of clients that is "
            f"a multiple of {in_a_sum}"
        )
