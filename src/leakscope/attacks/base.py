"""What every attack shares: the chores around :meth:`Attack.run`, and the form of its result."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import final

import torch
from torch import Tensor

from leakscope.errors import InvalidInput
from leakscope.inversion.solve import Trace
from leakscope.inversion.stopping import Outcome
from leakscope.observation import Observation
from leakscope.progress import Report, progress_bar
from leakscope.seeding import seeded


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack made of an observation.

    ``samples`` are as a person sees them (pixels in [0, 1]); ``labels`` what the attack took their labels to
    be; ``loss`` is the attacker's own, ``trace`` its course, ``outcome`` how it ended, in a sentence.
    ``epochs`` are the reconstructions of each local epoch, matched, where an attack makes several.
    ``attack`` is the record of what ran: the ``repr`` of the attack, and ``seed``.
    """

    samples: Tensor = field(repr=False)
    labels: Tensor | None
    outcome: Outcome
    loss: float = math.nan
    trace: Trace | None = field(default=None, repr=False)
    epochs: Tensor | None = field(default=None, repr=False)
    client: str = ""
    round: int = 0
    attack: str = ""
    seed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Attack(ABC):
    """An attack. Write :meth:`run`; calling the attack does the rest.

    Subclasses are frozen dataclasses: their fields are the configuration, their ``repr`` the record.
    """

    @final
    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        progress: bool | Report | None = None,
    ) -> Reconstruction:
        """Attack one observation.

        The same seed on the same machine gives the same bits. ``progress`` shows a bar (by default when
        standard error is a terminal) or is a function ``report(step, total, loss)``. Ctrl-C ends the attack
        and returns the best so far.
        """
        if not isinstance(observation, Observation):
            raise InvalidInput(f"an attack takes an Observation, not {type(observation).__name__}")
        seed = _whole(seed)
        if device is not None:
            observation = _moved(observation, device)
        began = time.perf_counter()
        with seeded(seed, "attack"), progress_bar(f"attacking {observation.client}", progress) as report:
            result = self.run(observation, seed, report)
        _check_result(result, self, observation)
        return replace(
            result,
            samples=result.samples.detach().cpu(),
            labels=None if result.labels is None else result.labels.detach().cpu(),
            epochs=None if result.epochs is None else result.epochs.detach().cpu(),
            client=observation.client,
            round=observation.round,
            attack=repr(self),
            seed=seed,
            seconds=time.perf_counter() - began,
        )

    @abstractmethod
    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples. Torch's generators are seeded; ``report`` shows progress."""


Factory = Callable[..., Attack]


def _whole(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise InvalidInput(f"seed must be a whole number, not {seed!r}")
    return int(seed)


def _check_result(result: object, attack: Attack, observation: Observation) -> None:
    if not isinstance(result, Reconstruction):
        raise InvalidInput(f"{attack!r} returned a {type(result).__name__}; run() must return a Reconstruction")
    if tuple(result.samples.shape[1:]) != observation.data.shape:
        raise InvalidInput(
            f"{attack!r} returned samples of shape {tuple(result.samples.shape[1:])}; "
            f"this data's samples have {observation.data.shape}"
        )


def _moved(observation: Observation, device: torch.device | str) -> Observation:
    try:
        return observation.to(device)
    except (RuntimeError, AssertionError) as problem:  # torch asserts that it was compiled for the device
        first = str(problem).splitlines()[0]
        raise InvalidInput(f"the attack cannot run on device {str(device)!r}: {first}") from problem
