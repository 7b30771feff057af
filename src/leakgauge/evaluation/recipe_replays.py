"""Replays of a client's training, and their comparison with the update that it sent.

For :mod:`leakgauge.evaluation.recipe_check`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation, draws_masks
from leakgauge.core.params import flatten, subtract
from leakgauge.core.progress import Report, silent
from leakgauge.core.seeding import generator, seeded
from leakgauge.core.truth import Truth
from leakgauge.federation.training import Trainer, draw_order

#: The standard errors by which a change must explain an update better, if the order of the samples hides the residual.
STANDARD_ERRORS = 6.0
#: The factor by which the residual may exceed the mean distance of two replays.
SPREAD = 2.0
#: The largest error of the length of the update, beside what the order of the samples explains.
LENGTH = 0.05


@dataclass(frozen=True, eq=False)
class Case:
    """A client as it is replayed.

    Args:
        training: The settings of the training, all of which are known.
        data: The description of the samples, with their normalisation.
        truth: The samples.
    """

    training: LocalTraining
    data: DataSpec
    truth: Truth


class Replays:
    """The replays of a message with different recipes.

    Args:
        observation: The message of the client.
        most: The largest number of replays.
        report: The function that is called after each replay.
    """

    def __init__(self, observation: Observation, most: int, report: Report = silent) -> None:
        self.observation = observation
        self.update = flatten(observation.difference()).double()
        self.most, self.report = most, report
        self.made = 0

    @property
    def exhausted(self) -> bool:
        """Whether no more replays can be made."""
        return self.made >= self.most

    def __call__(self, case: Case, count: int) -> Tensor | None:
        """Return the updates of a case with different orders, (orders, numbers), or ``None`` if it cannot be trained.

        Args:
            case: The client to replay.
            count: The number of orders.
        """
        updates = []
        for seed in range(count if self.is_random(case) else 1):
            try:
                updates.append(self._replay(case, seed))
            except (LeakgaugeError, RuntimeError):  # for example, batch norm with one sample in a batch
                return None
            self.made += 1
            self.report(self.made, self.most, math.nan)
        found = torch.stack(updates)
        return found if bool(found.isfinite().all()) else None

    def is_random(self, case: Case) -> bool:
        """Return whether replays of a case differ, because the order of its samples or its masks are unknown."""
        masks = case.training.mode == "train" and any(map(draws_masks, self.observation.model.modules()))
        if masks or self.observation.kind == "gradient":
            return masks
        return not self.has_order(case) and case.training.batch_sizes != (len(case.truth),)

    def has_order(self, case: Case) -> bool:
        """Return whether the order of a case is known, and its batches are those of its recipe."""
        # A training that stops after some steps may have fetched one batch more.
        order = case.truth.order[: case.training.local_steps]
        expected = list(case.training.batch_sizes) * int(case.training.need("epochs"))
        return bool(order) and [len(rows) for rows in order] == expected[: case.training.local_steps]

    def _replay(self, case: Case, seed: int) -> Tensor:
        observation, training = self.observation, case.training
        like = next(iter(observation.sent.values()))
        inputs = case.data.normalise(case.truth.inputs.to(like.device, like.dtype))
        targets = case.truth.targets.to(like.device)
        targets = targets.to(like.dtype) if targets.is_floating_point() else targets
        trainer = Trainer(observation.model, training)
        state = trainer.start(observation.sent, observation.model_buffers())
        with seeded(seed, "recipe check"), trainer.active():
            if observation.kind == "gradient":
                gradient, _ = trainer.gradient(state, (inputs, targets), graph=False)
                return flatten(trainer.rule.completed(gradient, state.weights, state.anchor)).double()
            weights = trainer.run(state, [(inputs[rows], targets[rows]) for rows in self._order(case, seed)]).weights
        return flatten(subtract(dict(observation.sent), weights)).double()

    def _order(self, case: Case, seed: int) -> tuple[Tensor, ...]:
        if self.has_order(case):
            return case.truth.order[: case.training.local_steps]
        training = case.training
        size, epochs = int(training.need("batch_size")), int(training.need("epochs"))
        draws = generator(seed, "order of a replay")
        return draw_order(len(case.truth), size, epochs, draws)[: training.local_steps]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Replays of one case beside the update.

    Args:
        update: The update that the client sent.
        replays: The replayed updates, (orders, numbers).
        rounding: The residual that is allowed if the order is known.
    """

    update: Tensor
    replays: Tensor
    rounding: float

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the replays."""
        return self.replays.mean(0)

    @cached_property
    def square(self) -> float:
        """The squared length of the update."""
        return float(self.update.square().sum())

    @cached_property
    def residual(self) -> float:
        """The mean distance of the replays from the update, as a share of the update's length."""
        return float((self.replays - self.update).norm(dim=1).mean()) / math.sqrt(self.square)

    @cached_property
    def limit(self) -> float:
        """The largest residual that the recipe explains."""
        if len(self.replays) == 1:
            return self.rounding
        return self.rounding + SPREAD * float(torch.pdist(self.replays).mean()) / math.sqrt(self.square)

    @cached_property
    def bias(self) -> float:
        """The squared distance of the update from the replays that their spread does not explain, as a share."""
        count = len(self.replays)
        spread = 0.0 if count == 1 else float((self.replays - self.mean).square().sum()) / (count - 1)
        return (float((self.update - self.mean).square().sum()) - (1 + 1 / count) * spread) / self.square

    @cached_property
    def length(self) -> float:
        """The length of the update along the mean replay, as a multiple of the replay's length."""
        square = float(self.mean.square().sum())
        return float(self.update @ self.mean) / square if square else math.inf

    @property
    def fits_length(self) -> bool:
        """Whether the update is as long along the replays as they are."""
        spread = 0.0
        if len(self.replays) > 1:
            spread = float((self.replays @ self.mean).std() / self.mean.square().sum())
        return abs(self.length - 1) <= LENGTH + 3 * spread

    @property
    def explains(self) -> bool:
        """Whether the replays explain the update."""
        return self.residual <= self.limit and self.fits_length

    @property
    def rank(self) -> float:
        """The smaller, the better the replays explain the update."""
        return max(self.bias, 0.0) + 0.1 * self.residual**2

    def prefers(self, other: Tensor) -> bool:
        """Return whether the update is clearly nearer to a replay with another recipe, in the direction to it.

        Args:
            other: The replay of the changed case, with the order of the first replay.
        """
        direction = other - self.replays[0]
        square = float(direction.square().sum())
        if not square or (other - self.update).norm() >= (self.replays[0] - self.update).norm():
            return False
        along = float((self.update - self.mean) @ direction) / square
        spread = float(((self.replays - self.mean) @ direction).std()) / square
        return along > 0.5 and along > STANDARD_ERRORS * spread * math.sqrt(1 + 1 / len(self.replays))
