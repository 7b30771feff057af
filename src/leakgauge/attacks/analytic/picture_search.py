"""The search for pictures with given features. Each picture has its own loss, and total variation is the prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.inversion.optimisers import Ramp
from leakgauge.attacks.inversion.priors import TotalVariation
from leakgauge.attacks.inversion.settings import Space
from leakgauge.core.observation import DataSpec
from leakgauge.core.progress import Report

#: A picture above this relative squared error of its features ended in a local minimum.
STUCK = 1e-4
#: The share of the steps during which the weight of total variation falls.
PATH = 0.6
#: The share of the weight of total variation that is left after these steps.
END = 3e-4
#: Features below this share of the largest one are zeros of a ReLU. They give an inequality and no equation.
ZERO = 1e-5


@dataclass(frozen=True)
class Schedule:
    """The changes of the learning rate and of the prior's weight during a search.

    Args:
        steps: The number of Adam steps from each starting point.
        lr: The first learning rate.
        restarts: The largest number of starting points for one picture.
        tv: The weight of total variation at the first step.
    """

    steps: int
    lr: float
    restarts: int
    tv: float

    @property
    def path(self) -> int:
        """The number of steps during which the weight of the prior falls and the learning rate is constant."""
        return round(PATH * self.steps)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step."""
        return self.lr * (1.0 if step < self.path else Ramp(1.0, 0.01, 1.0)(step - self.path, self.steps - self.path))

    def weight(self, step: int, determined: bool) -> float:
        """Return the weight of the prior at a step.

        Args:
            step: The step.
            determined: Whether the features determine the pictures. The weight then ends at zero.
        """
        if determined and step >= self.path:
            return 0.0
        return self.tv * Ramp(1.0, END, 1.0)(min(step, self.path), self.path)


class PictureSearch:
    """The search for all pictures at once by Adam. Each picture has its own loss, and its best iterate is kept.

    Args:
        extract: The function that maps samples to features.
        features: The features of the pictures, one row for each.
        data: The description of the samples.
        random: The generator of the random starts.
    """

    def __init__(
        self, extract: Callable[[Tensor], Tensor], features: Tensor, data: DataSpec, random: torch.Generator
    ) -> None:
        self.extract, self.features, self.random = extract, features, random
        self.given, self.units = data, Space(rescale=True).units(data)
        self.determined = _equations(features) >= math.prod(data.shape)
        self.pictures = self._drawn(len(features))
        self.losses = torch.full_like(features[:, 0], torch.inf)

    @property
    def samples(self) -> Tensor:
        """The best pictures so far, in their original units."""
        samples = self.units.denormalise(self.pictures)
        return samples.clamp(0, 1) if self.units.bounded else samples

    def run(self, schedule: Schedule, report: Report) -> bool:
        """Search for all pictures, and search again for those in local minima. Return whether Ctrl-C ended the search.

        Args:
            schedule: The number of steps, the learning rates, the weights of the prior and the number of starts.
            report: The progress function.
        """
        try:
            for restart in range(schedule.restarts):
                rows = torch.nonzero(self.losses > STUCK).flatten()
                if not len(rows):
                    break
                start = self.pictures if restart == 0 else self._drawn(len(rows))
                self._descend(rows, start, schedule, _part_of(report, restart * schedule.steps))
        except KeyboardInterrupt:
            return True
        return False

    def _descend(self, rows: Tensor, start: Tensor, schedule: Schedule, report: Report) -> None:
        """Take the Adam steps for some pictures."""
        pictures = start.clone().requires_grad_()
        prior = TotalVariation(1.0, opponents=True)
        smooth = schedule.tv > 0 and prior.applies(self.units)
        optimiser = torch.optim.Adam([pictures], lr=schedule.lr, betas=(0.9, 0.9))
        for step in range(schedule.steps + 1):
            losses = self._losses(pictures, rows)
            self._keep_best(rows, pictures.detach(), losses.detach())
            if step == schedule.steps:
                break
            loss, weight = losses.sum(), schedule.weight(step, self.determined)
            if smooth and weight > 0:
                loss = loss + len(rows) * weight * prior(pictures.unsqueeze(0), self.units)
            (pictures.grad,) = torch.autograd.grad(loss, [pictures])
            optimiser.param_groups[0]["lr"] = schedule.rate(step)
            optimiser.step()
            with torch.no_grad():
                pictures.copy_(self._clamped(pictures))
            report(step + 1, schedule.steps, float(self.losses.mean()))

    def _losses(self, pictures: Tensor, rows: Tensor) -> Tensor:
        features = self.features[rows]
        seen = pictures if self.units is self.given else self.given.normalise(self.units.denormalise(pictures))
        difference = (self.extract(seen) - features).square().sum(1)
        return difference / features.square().sum(1).clamp_min(1e-30)

    def _keep_best(self, rows: Tensor, pictures: Tensor, losses: Tensor) -> None:
        better = losses < self.losses[rows]
        self.losses[rows[better]] = losses[better]
        self.pictures[rows[better]] = pictures[better]

    def _drawn(self, count: int) -> Tensor:
        """Return random pictures with pixels from N(0, 1), clamped to the range of pixels."""
        shape, dtype = self.units.shape, self.features.dtype
        drawn = torch.randn(count, *shape, dtype=dtype, generator=self.random).to(self.features.device)
        return self._clamped(drawn)

    def _clamped(self, pictures: Tensor) -> Tensor:
        if not self.units.bounded:
            return pictures
        return self.units.normalise(self.units.denormalise(pictures).clamp(0, 1))


def _equations(features: Tensor) -> int:
    """Return the smallest number of features of a picture that are not zero."""
    if not len(features):
        return 0
    sizes = features.abs()
    return int((sizes > ZERO * sizes.amax(1, keepdim=True)).sum(1).min())


def _part_of(report: Report, before: int) -> Report:
    """Return a progress function that adds ``before``, the number of earlier steps, to the step and to the total."""

    def part(step: int, total: int | None, loss: float) -> None:
        report(before + step, None if total is None else before + total, loss)

    return part
