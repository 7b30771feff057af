"""The base class of attacks, and the result of an attack."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from leakgauge.attacks.analytic.lookups import lookups_of
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.requirements import Workload, check_requirements, samples_in
from leakgauge.attacks.unknown_rate import as_direction, with_rate
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, progress_bar
from leakgauge.core.seeding import seeded


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The result of an attack on an observation.

    Args:
        samples: The reconstructed samples in their original units, with pixels in [0, 1].
        labels: The labels that the attack used or inferred.
        outcome: The way in which the attack ended, such as converged or interrupted.
        loss: The loss of the attack at these samples. The attacker can compute this loss without the true samples.
        trace: The record of the optimisation, such as the loss at each step.
        epochs: The reconstructions from each local epoch, in the order of ``samples``. ``None`` if the attack does not
            reconstruct epochs separately.
        client: The name of the client.
        round: The index of the round.
        attack: The ``repr`` of the attack, which records its settings.
        seed: The seed of the attack.
        seconds: The time that the attack took.
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
    """The base class of attacks.

    A subclass defines :meth:`run`. Calling the attack checks the message, seeds the random generators, calls
    :meth:`run` and measures the time.

    Subclasses are frozen dataclasses. The fields are the settings of the attack, and the ``repr`` records these
    settings. The attribute ``takes_lookups`` is true for attacks that recover values which the model looks up in an
    embedding, such as token ids.
    """

    takes_lookups: ClassVar[bool] = False

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

        The same seed on the same machine gives exactly the same result. Ctrl-C ends the attack and returns the best
        result so far.

        Args:
            observation: The message of the client.
            seed: The seed of all random draws.
            device: The device of the computation. By default, the device of the observation.
            progress: Whether a progress bar is shown, or a function ``report(step, total, loss)``. By default, a bar is
                shown if standard error is a terminal.
        """
        observation, seed = self.readable(_prepared(observation, device)), _whole(seed)
        self.check(observation)
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
        """Attack several observations, and return one result for each observation.

        Observation ``i`` has the same result as ``attack(observation, seed=seed + i)``. Some attacks solve several
        observations in one run. The results of such a run may differ from the results of single calls by rounding. The
        time of such a run is divided equally among its results. Ctrl-C ends the attack and returns the results so far.
        If the observations are attacked one by one, the last result belongs to the interrupted observation.

        Args:
            observations: The messages of the clients.
            seed: The seed of the first observation.
            device: The device of the computation. By default, the device of the observations.
            progress: Whether a progress bar is shown, or a function ``report(step, total, loss)``. By default, a bar is
                shown if standard error is a terminal.
        """
        seed = _whole(seed)
        prepared = [self.readable(_prepared(observation, device)) for observation in observations]
        seeds = [seed + index for index in range(len(prepared))]
        if not prepared:
            return []
        for observation in prepared:
            self.check(observation)
        began = time.perf_counter()
        with seeded(seed, "attack"), progress_bar(f"attacking {len(prepared)} clients", progress) as report:
            results = self.run_each(prepared, seeds, report)
        share = (time.perf_counter() - began) / max(1, len(results))
        return [
            self._finished(result, observation, seed_of_one, result.seconds or share)
            for result, observation, seed_of_one in zip(results, prepared, seeds, strict=False)
        ]

    @final
    def check(self, observation: Observation) -> None:
        """Raise an error if the attack cannot run on an observation, because the model or the machine does not fit it.

        Every call of the attack checks this. A workflow can check all messages before the first attack.

        Args:
            observation: The message of the client.
        """
        observation = self.readable(observation)
        check_requirements(observation, self.workload(observation))
        obstacle = "" if self.takes_lookups else lookups_of(observation).obstacle
        if obstacle:
            raise InvalidInput(
                f"this attack cannot recover the samples of {observation.client}, because {obstacle}. Use "
                "embedding_read_off, which reads token ids from the rows of the embedding's update"
            )

    @property
    def takes_direction(self) -> bool:
        """Whether the attack needs no more than the direction of a gradient."""
        return False

    @final
    def readable(self, observation: Observation) -> Observation:
        """Return the message in the form in which the attack reads it.

        It is another message only after one step of SGD with an unknown learning rate
        (:mod:`leakgauge.attacks.unknown_rate`).

        Args:
            observation: The message of the client.
        """
        solved = with_rate(observation)
        return as_direction(solved) if self.takes_direction else solved

    def workload(self, observation: Observation) -> Workload:
        """Return the size of the attack's computation, from which the memory that it needs is estimated.

        By default, the attack holds one sample for each of the client's samples.

        Args:
            observation: The message of the client.
        """
        samples = samples_in(observation) or 1
        return Workload(samples, samples)

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
        """Reconstruct the client's samples.

        The random generators of torch are seeded before the call.

        Args:
            observation: The message of the client.
            seed: The seed for further random generators of the attack.
            report: A function ``report(step, total, loss)`` that shows progress.
        """

    def forecast(self, observation: Observation) -> float | None:
        """Return the expected seconds of the attack on this machine, or ``None`` if they cannot be estimated.

        Args:
            observation: The message of the client.
        """
        return None

    def scaled(self, factor: float) -> Self:
        """Return a copy of the attack with more or fewer steps. An attack without steps is returned unchanged.

        Args:
            factor: The factor by which the number of steps is multiplied. It is below 1 for a cheaper attack.
        """
        return self

    def run_each(
        self, observations: Sequence[Observation], seeds: Sequence[int], report: Report
    ) -> list[Reconstruction]:
        """Reconstruct the samples of several clients.

        By default, the clients are attacked one after another. A subclass may attack all clients in one run.

        Args:
            observations: The messages of the clients.
            seeds: One seed for each client.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        results: list[Reconstruction] = []
        for number, (observation, seed) in enumerate(zip(observations, seeds, strict=True)):
            began = time.perf_counter()
            with seeded(seed, "attack"):
                result = self.run(observation, seed, _part(report, number, len(observations)))
            results.append(replace(result, seconds=time.perf_counter() - began))
            if result.outcome.kind == "interrupted":
                break
        return results


def _part(report: Report, number: int, count: int) -> Report:
    """Return a progress function for the attack with the index ``number`` among ``count`` equally long attacks.

    The function counts the steps of all attacks together, and passes this count to ``report``.
    """

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
        raise InvalidInput(f"{attack!r} returned a {type(result).__name__}, but run() must return a Reconstruction")
    if tuple(result.samples.shape[1:]) != observation.data.shape:
        raise InvalidInput(
            f"{attack!r} returned samples of shape {tuple(result.samples.shape[1:])}, "
            f"but the samples of this data have {observation.data.shape}"
        )


def _moved(observation: Observation, device: torch.device | str) -> Observation:
    try:
        return observation.to(device)
    except (RuntimeError, AssertionError) as problem:  # AssertionError if torch is not compiled for the device
        first = str(problem).splitlines()[0]
        raise InvalidInput(f"the attack cannot run on device {str(device)!r}: {first}") from problem
