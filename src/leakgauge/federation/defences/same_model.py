"""A comparison of the received weights among clients, which a server that singles out one client cannot pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput, shown
from leakgauge.core.params import Params
from leakgauge.federation.defence import ReceivedDefence
from leakgauge.federation.received.digest import fingerprint

#: The largest number of other clients that are asked.
MOST = 1_000_000


@dataclass(frozen=True)
class SameModel(ReceivedDefence):
    """Refusal to train on weights that most other clients did not get.

    The clients exchange fingerprints of the weights that they got, over a channel that the server does not control. In
    an honest round, all fingerprints are equal, so there are no false alarms. The defence does not notice a server that
    sends the same manipulated weights to all clients.

    Args:
        clients: The number of other clients that are asked.
    """

    name: ClassVar[str] = "same_model"
    clients: int = 3

    def __post_init__(self) -> None:
        if whole_number("the clients of same_model", self.clients) > MOST:
            raise InvalidInput(f"same_model asks at most {MOST:,} other clients, not {shown(self.clients)}")

    def refuses(self, received: Params, others: Sequence[Params]) -> str:
        """Compare fingerprints. The client refuses if at least half of the asked clients got other weights."""
        asked = list(others)[: self.clients]
        own = fingerprint(received)
        different = sum(fingerprint(weights) != own for weights in asked)
        if asked and 2 * different >= len(asked):
            return f"{different} of {len(asked)} other clients got other weights than this client"
        return ""
