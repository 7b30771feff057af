"""Rounds in which a malicious server sends chosen clients weights of its own making.

Such rounds are for the audit of one's own federation. They show what a server could learn that does not follow the
protocol. The rule by which the server chooses the weights is an attack, such as
:class:`leakgauge.attacks.local_model.ActiveAdam`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params


class Rule(Protocol):
    """The interface of a malicious server's rule.

    Attributes:
        rule: The name of the rule.
    """

    @property
    def rule(self) -> str:
        """The name of the rule."""

    def next_weights(self, observations: Sequence[Observation], current: Params) -> Params:
        """Return the weights that the server sends to a client in the next round.

        Args:
            observations: The client's recorded messages so far.
            current: The weights that an honest server would send.
        """


@dataclass(frozen=True)
class Steering:
    """The rounds of a malicious server, which follow the honest rounds of a federation.

    A steered client is left out of the average, so that the other clients notice nothing.

    Args:
        rule: The rule by which the server chooses the weights that it sends, such as
            :class:`leakgauge.attacks.local_model.ActiveAdam`.
        clients: The indices of the steered clients. Each gets weights of its own.
        rounds: The number of steered rounds.
    """

    rule: Rule
    clients: Collection[int] = (0,)
    rounds: int = 50

    def check(self, count: int) -> None:
        """Raise an error if a steered client does not exist, or if there are no rounds.

        Args:
            count: The number of clients of the federation.
        """
        if self.rounds < 1:
            raise InvalidInput(f"a malicious server needs at least 1 round, not {self.rounds}")
        if not self.clients:
            raise InvalidInput("a malicious server needs at least one client to steer")
        for index in self.clients:
            if not 0 <= index < count:
                raise InvalidInput(f"client {index} cannot be steered. The clients are 0 to {count - 1}.")
