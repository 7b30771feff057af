"""Secure aggregation (Bonawitz et al. 2017), which shows the server only the sum of several clients' messages.

The protocol itself is not run here. For an attack, only the view of the server matters, which is the sum
(:func:`leakgauge.federation.aggregation.aggregate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakgauge.core.errors import InvalidInput, shown
from leakgauge.federation.defence import ServerDefence

#: The largest number of clients in a round.
MOST = 1_000_000


@dataclass(frozen=True)
class SecureAggregation(ServerDefence):
    """A protocol with which the server gets only the mean of all clients' messages in a round.

    Args:
        clients: The smallest number of clients in a round.
    """

    name: ClassVar[str] = "secure_aggregation"
    clients: int = 10

    def __post_init__(self) -> None:
        if not isinstance(self.clients, int) or isinstance(self.clients, bool) or not 2 <= self.clients <= MOST:
            raise InvalidInput(
                "secure aggregation hides a client among others, so its clients must be a whole number of at least 2 "
                f"and at most {MOST:,}, not {shown(self.clients)}"
            )

    def check(self, messages: int) -> None:
        """Raise an error if there are too few messages. The protocol also refuses such a round."""
        if messages < self.clients:
            raise InvalidInput(
                f"secure aggregation over {self.clients} clients gets the messages of {messages}. "
                "Let more clients take part in a round, or lower clients."
            )
