"""The settings of a federated training that are the same in every round."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining
from leakgauge.core.seeding import generator
from leakgauge.data.dataset import Dataset
from leakgauge.federation.client import check_training
from leakgauge.federation.defence import Defence, Protection, ServerDefence
from leakgauge.federation.exposure import Exposure
from leakgauge.federation.model_check import check_model


@dataclass(frozen=True, eq=False)
class Plan:
    """The settings of a federated training that are the same in every round."""

    model: nn.Module
    clients: Sequence[Dataset]
    recipes: Sequence[LocalTraining]
    defences: tuple[Defence, ...]
    rounds: int
    sampling: Sampling
    exposure: Exposure
    watching: Watching
    testing: Testing
    together: bool | None

    def check(self) -> None:
        """Raise an error if the settings cannot work. This is called before the first round."""
        for data, recipe in zip(self.clients, self.recipes, strict=True):
            self.exposure.check(data)
            check_model(self.model, data, recipe.loss)
            check_training(self.defences, self.model, recipe, self.exposure)
        for defence in self.defences:
            if isinstance(defence, ServerDefence):
                defence.check(self.sampling.clients_per_round or len(self.clients))
        if self.together and self.protection.acts_on_steps:
            raise InvalidInput(
                f"clients cannot train together with {self.defences!r}, which act on each step. Use together=False."
            )

    @property
    def protection(self) -> Protection:
        """The defences of every client."""
        return Protection(self.defences, self.sampling.seed)

    @property
    def only_sums(self) -> bool:
        """Whether the server gets only the mean of all messages of a round."""
        return any(isinstance(defence, ServerDefence) for defence in self.defences)


@dataclass(frozen=True)
class Sampling:
    """The rule that chooses the clients of a round and sets the weight of each client in the average."""

    clients_per_round: int | None
    weighting: str
    seed: int

    def check(self, clients: int) -> None:
        """Raise an error if the number of clients per round or the weighting is not valid."""
        if self.clients_per_round is not None and not 1 <= self.clients_per_round <= clients:
            raise InvalidInput(f"clients_per_round must lie between 1 and {clients}, not {self.clients_per_round}")
        if self.weighting not in ("samples", "uniform"):
            raise InvalidInput(f"weighting must be 'samples' or 'uniform', not {self.weighting!r}")

    def chosen(self, clients: int, number: int) -> list[int]:
        """Return the indices of the clients that take part in a round."""
        if self.clients_per_round is None or self.clients_per_round == clients:
            return list(range(clients))
        order = torch.randperm(clients, generator=generator(self.seed, "selection", number))
        return sorted(order[: self.clients_per_round].tolist())

    def share(self, data: Dataset) -> float:
        """Return the weight of one client in the average."""
        return float(len(data)) if self.weighting == "samples" else 1.0


@dataclass(frozen=True)
class Watching:
    """The clients whose messages are recorded, and the interval between recorded rounds."""

    clients: Collection[int]
    every: int

    def check(self, clients: int) -> None:
        """Raise an error if a client whose messages are to be recorded does not exist."""
        for index in self.clients:
            if not 0 <= index < clients:
                raise InvalidInput(f"client {index} cannot be watched. The clients are 0 to {clients - 1}.")


@dataclass(frozen=True, eq=False)
class Testing:
    """The test data, and the interval between tested rounds."""

    data: Dataset | None
    every: int


def check_counts(clients: Sequence[Dataset], rounds: int, test: Dataset | None, **intervals: int) -> None:
    """Raise an error if there are no clients or no test samples, or if ``rounds`` or an interval is below 1."""
    if not clients:
        raise InvalidInput("a federation needs at least one client")
    for name, value in {"rounds": rounds, **intervals}.items():
        if value < 1:
            raise InvalidInput(f"{name} must be at least 1, not {value}")
    if test is not None and not len(test):
        raise InvalidInput("the test data holds no samples")
