"""Secure aggregation (Bonawitz et al. 2017): the server learns the sum of several clients' messages, and no part of it.

The protocol is not run here: what matters to an attack is what the server sees, and that is the sum
(:func:`leakgauge.federation.aggregation.aggregate`).
"""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.core.errors import InvalidInput
from leakgauge.federation.defence import ServerDefence


@dataclass(frozen=True)
class SecureAggregation(ServerDefence):
    """The server sees the mean over all clients of a round, which are at least ``clients``."""

    clients: int = 10

    def __post_init__(self) -> None:
        if not isinstance(self.clients, int) or isinstance(self.clients, bool) or self.clients < 2:
            raise InvalidInput(
                f"secure aggregation hides a client among others: clients must be at least 2, not {self.clients!r}"
            )

    def check(self, messages: int) -> None:
        """Too few messages are not aggregated, as in the protocol."""
        if messages < self.clients:
            raise InvalidInput(
                f"secure aggregation over {self.clients} clients gets the messages of {messages}; "
                "let more take part in a round, or lower clients"
            )
