"""Data of the same kind as the clients' data, which the attacker owns. It is knowledge that an attacker is granted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import Params

#: A function of the samples and the targets of one imaginary client and of a seed. It returns what the client would
#: send, as :meth:`leakgauge.Observation.difference`.
Rehearse = Callable[[Tensor, Tensor, int], Params]


@dataclass(frozen=True, eq=False)
class PublicData:
    """Public samples with their targets, and a rehearsal of what a client with some of these samples would send.

    The rehearsal uses the weights that the server sent and the settings that the attacker knows. Its clients use the
    defence if the attacker knows the defence.

    Args:
        samples: The samples without normalisation, (N, *shape).
        targets: One target for each sample.
        rehearse: The function that returns the message of an imaginary client.
        description: The origin of the samples, for people, such as ``"500 other samples of mnist5k"``.
        obstacle: The reason why the attacker cannot rehearse the round, such as ``"needs the client's learning rate,
            which is unknown"``. The text is empty if it can.
    """

    samples: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    rehearse: Rehearse = field(repr=False)
    description: str = "public samples"
    obstacle: str = ""

    def __post_init__(self) -> None:
        if len(self.samples) != len(self.targets):
            raise InvalidInput(f"the public data has {len(self.samples)} samples but {len(self.targets)} targets")
        if not len(self.samples):
            raise InvalidInput("the public data has no samples. Grant some, or leave public data out")

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def digests(self) -> list[str]:
        """The digest of the content of each sample."""
        return sample_digests(self.samples)

    def to(self, device: torch.device | str) -> PublicData:
        """Return a copy of the public data on another device."""
        return replace(self, samples=self.samples.to(device), targets=self.targets.to(device))


def sample_digests(samples: Tensor) -> list[str]:
    """Return a digest of the content of each sample. Equal samples have equal digests.

    Args:
        samples: The samples without normalisation.
    """
    rows = samples.detach().cpu().float().contiguous().flatten(1).numpy()
    return [hashlib.sha256(row.tobytes()).hexdigest() for row in rows]
