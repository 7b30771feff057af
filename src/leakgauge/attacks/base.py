"""What every attack shares: the chores around :meth:`Attack.run`, and the form of its result."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import final

import torch
from torch import Tensor

from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, progress_bar
from leakgauge.core.seeding import seeded


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
        observation, seed = _prepared(observation, device), _whole(seed)
        began = time.perf_counter()
        with seeded(seed, "attack"), progress_bar(f"attacking {observation.client}", progress) as report:
            result = self.run(observation, seed, report)
        return self._finished(result, observation, seed, time.perf_counter() - began)

    @final
    def each(
        self,
        observations: Sequence[Observation],
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        progress: bool | Report | None = None,
    ) -> list[Reconstruction]:
        """Attack several observations, as one where the attack can do that; one result each, in their order.

        Observation ``i`` is attacked as by ``attack(observation, seed=seed + i)``, up to rounding where problems are
        solved together; its ``seconds`` are then its equal share. Ctrl-C returns what there is: those that were
        attacked one by one end with the interrupted one.
        """
        seed = _whole(seed)
        prepared = [_prepared(observation, device) for observation in observations]
        seeds = [seed + index for index in range(len(prepared))]
        if not prepared:
            return []
        began = time.perf_counter()
        with seeded(seed, "attack"), progress_bar(f"attacking {len(prepared)} clients", progress) as report:
            results = self.run_each(prepared, seeds, report)
        share = (time.perf_counter() - began) / max(1, len(results))
        return [
            self._finished(result, observation, one, result.seconds or share)
            for result, observation, one in zip(results, prepared, seeds, strict=False)
        ]

    def _finished(self, result: Reconstruction, observation: Observation, seed: int, seconds: float) -> Reconstruction:
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
            seconds=seconds,
        )

    @abstractmethod
    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples. Torch's generators are seeded; ``report`` shows progress."""

    def run_each(
        self, observations: Sequence[Observation], seeds: Sequence[int], report: Report
    ) -> list[Reconstruction]:
        """Reconstruct the samples of several clients: one after another, unless the attack knows better."""
        results: list[Reconstruction] = []
        for number, (observation, seed) in enumerate(zip(observations, seeds, strict=True)):
            began = time.perf_counter()
            with seeded(seed, "attack"):
                result = self.run(observation, seed, _part(report, number, len(observations)))
            results.append(replace(result, seconds=time.perf_counter() - began))
            if result.outcome.kind == "interrupted":
                break
        return results


Factory = Callable[..., Attack]


def _part(report: Report, number: int, count: int) -> Report:
    """A report for one of several attacks of equal length."""

    def part(step: int, total: int | None, loss: float) -> None:
        report(number * (total or 0) + step, None if total is None else count * total, loss)

    return part


def _prepared(observation: object, device: torch.device | str | None) -> Observation:
    if not isinstance(observation, Observation):
        raise InvalidInput(f"an attack takes an Observation, not {type(observation).__name__}")
    return observation if device is None else _moved(observation, device)


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
