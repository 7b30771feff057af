r"""The attack that solves for the features that enter two dense layers, then searches separately for each picture.

If a convolutional network ends in two dense layers, the inputs of these layers are features :math:`f(x_i)` and not
samples. The module :mod:`.spans` solves for these features exactly. Then the attack searches for each picture
separately:

.. math:: \arg\min_x \; \lVert f(x) - f_i \rVert^2 / \lVert f_i \rVert^2 .

Here :math:`f` is the network up to the two layers, and :math:`f_i` are the solved features of sample :math:`i`. The
search needs no labels, no priors and no other samples of the batch. Adam starts from random pixels from N(0, 1), and
the learning rate falls to zero. Pixels are clamped to their range in each step. A high loss shows that a search has
ended in a local minimum. The search for this picture then starts again. We know of no earlier description of this
attack.

The attacker can prove the features, but not the pictures, because pooling and ReLU can map several pictures to nearly
the same features. The loss shows how well the features of a picture agree with the proven features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import (
    DoesNotFit,
    Reached,
    one_gradient_of,
    stop_at_input,
)
from leakgauge.attacks.analytic.model_copy import copy_of_model
from leakgauge.attacks.analytic.peeling import (
    Peeling,
    SearchSettings,
    chain_of,
    factor_finders,
    span_finders,
)
from leakgauge.attacks.analytic.separability import check_size, separable_samples, visible_samples
from leakgauge.attacks.analytic.two_layers import TwoLayers
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: A picture above this relative squared error of its features ended in a local minimum.
STUCK = 1e-4


@dataclass(frozen=True)
class DenseTailFeatures(Attack):
    """The attack that solves for features, then searches for pictures that have these features.

    Args:
        search: The settings of the search for features.
        steps: The number of Adam steps from each starting point.
        lr: The first learning rate of Adam.
        restarts: The largest number of starting points of the search for one picture.
    """

    uses_defences: ClassVar[bool] = False

    search: SearchSettings
    steps: int = 1500
    lr: float = 0.1
    restarts: int = 4

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)
        whole_number("restarts", self.restarts)
        positive("lr", self.lr)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return a picture for each sample whose features could be proven.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
            report: The progress function, which gets the number of Adam steps.
        """
        random = generator(seed, "dense tail features")
        chain = _tail(observation)
        finders = factor_finders(chain, self.search, random)
        count = observation.training.samples
        if count is None or count <= separable_samples(chain):
            finders += span_finders(chain, self.search, random)
        peeling = Peeling(self.search, chain, observation, finders, chain.layer(chain.first).out_features // 2)
        interrupted = peeling.run(lambda *_: report(0, None, math.nan))
        features, labels = peeling.result()
        dtype = next(iter(observation.sent.values())).dtype
        extract = extractor(observation, peeling.chain.first, dtype)
        descent = _Descent(extract, features.to(dtype), observation.data, random)
        schedule = _Schedule(0 if interrupted else self.steps, self.lr, self.restarts)
        interrupted = descent.run(schedule, report) or interrupted
        samples = observation.data.denormalise(descent.best)
        samples = samples.clamp(0, 1) if observation.data.bounded else samples
        labels = labels.to(dtype) if labels.is_floating_point() else labels
        loss = float(descent.losses.mean())
        determined = features.shape[1] >= math.prod(observation.data.shape) and bool((descent.losses <= STUCK).all())
        return Reconstruction(samples, labels, _outcome(peeling, interrupted, loss, determined), loss=loss)


@dataclass(frozen=True)
class _Schedule:
    steps: int
    lr: float
    restarts: int


class _Descent:
    """The search for all pictures at once by Adam. Each picture has its own loss, and its best iterate is kept."""

    def __init__(
        self, extract: Callable[[Tensor], Tensor], features: Tensor, data: DataSpec, random: torch.Generator
    ) -> None:
        self.extract, self.features, self.data, self.random = extract, features, data, random
        self.best = self._drawn(len(features))
        self.losses = torch.full_like(features[:, 0], torch.inf)

    def run(self, schedule: _Schedule, report: Report) -> bool:
        """Search for all pictures, and search again for those in local minima. Return whether Ctrl-C ended the search.

        Args:
            schedule: The number of steps, the first learning rate and the largest number of starting points.
            report: The progress function.
        """
        try:
            for restart in range(schedule.restarts):
                rows = torch.nonzero(self.losses > STUCK).flatten()
                if not len(rows):
                    break
                start = self.best if restart == 0 else self._drawn(len(rows))
                self._descend(rows, start, schedule, _part_of(report, restart * schedule.steps))
        except KeyboardInterrupt:
            return True
        return False

    def _descend(self, rows: Tensor, start: Tensor, schedule: _Schedule, report: Report) -> None:
        """Take the Adam steps for some pictures. The learning rate falls to zero along a cosine."""
        pictures = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([pictures], lr=schedule.lr)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, schedule.steps))
        for step in range(schedule.steps + 1):
            optimiser.zero_grad()
            losses = self._losses(pictures, rows)
            self._keep_best(rows, pictures.detach(), losses.detach())
            if step == schedule.steps:
                break
            losses.sum().backward()
            optimiser.step()
            rates.step()
            with torch.no_grad():
                pictures.copy_(self._clamped(pictures))
            report(step + 1, schedule.steps, float(self.losses.mean()))

    def _losses(self, pictures: Tensor, rows: Tensor) -> Tensor:
        features = self.features[rows]
        difference = (self.extract(pictures) - features).square().sum(1)
        return difference / features.square().sum(1).clamp_min(1e-30)

    def _keep_best(self, rows: Tensor, pictures: Tensor, losses: Tensor) -> None:
        better = losses < self.losses[rows]
        self.losses[rows[better]] = losses[better]
        self.best[rows[better]] = pictures[better]

    def _drawn(self, count: int) -> Tensor:
        """Return random pictures with pixels from N(0, 1), clamped to the range of pixels."""
        shape, dtype = self.data.shape, self.features.dtype
        drawn = torch.randn(count, *shape, dtype=dtype, generator=self.random).to(self.features.device)
        return self._clamped(drawn)

    def _clamped(self, pictures: Tensor) -> Tensor:
        if not self.data.bounded:
            return pictures
        return self.data.normalise(self.data.denormalise(pictures).clamp(0, 1))


def _part_of(report: Report, before: int) -> Report:
    """Return a progress function that adds ``before``, the number of earlier steps, to the step and to the total."""

    def part(step: int, total: int | None, loss: float) -> None:
        report(before + step, None if total is None else before + total, loss)

    return part


def extractor(observation: Observation, path: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return the function that maps samples to the inputs of a dense layer."""
    model = copy_of_model(observation, dtype)
    model.get_submodule(path).register_forward_pre_hook(stop_at_input)

    def extract(inputs: Tensor) -> Tensor:
        try:
            model(inputs)
        except Reached as reached:
            return reached.inputs
        raise AssertionError("the forward pass does not reach the dense layer")

    return extract


def _tail(observation: Observation) -> TwoLayers:
    """Return the two dense layers whose inputs are features, or raise an error if the attack does not apply."""
    chain = chain_of(observation, on_samples=False)
    seen = next(inputs for path, inputs in chain.calls if path == chain.first)
    if seen.shape[1] == math.prod(observation.data.shape) and _gets_samples(observation):
        raise DoesNotFit("samples enter the dense layers themselves, so two_spans solves for them directly")
    chain.check_features()
    chain.check_only_path()
    return chain


def _gets_samples(observation: Observation) -> bool:
    try:
        chain_of(observation)
    except DoesNotFit:
        return False
    return True


def _outcome(peeling: Peeling, interrupted: bool, loss: float, determined: bool) -> Outcome:
    """Return how the attack ended. It has converged only if the proven features determine the pictures.

    Args:
        peeling: The search for features.
        interrupted: Whether Ctrl-C ended the attack.
        loss: The mean relative squared error of the pictures' features.
        determined: Whether each picture has the proven features, and there are at least as many features as pixels.
    """
    outcome = peeling.outcome(interrupted)
    if not peeling.recovered:
        return outcome
    words = f"features: {outcome}. The pictures have these features up to a relative squared error of {loss:.2g}"
    kind = "finished" if outcome.kind == "converged" and not determined else outcome.kind
    return Outcome(kind, outcome.step, words)


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one gradient of a network that ends in two dense layers.

    Args:
        observation: The message of the client.
    """
    try:
        one_gradient_of(observation)
        chain = _tail(observation)
        check_size(chain, observation.training.samples)
        unseen = visible_samples(chain, observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(
        True, f"the network ends in two dense layers, whose gradients determine the features of each sample{unseen}"
    )


def dense_tail_features(
    *,
    steps: int = 1500,
    lr: float = 0.1,
    restarts: int = 4,
    starts: int = 48,
    iterations: int = 60,
    attempts: int = 6,
    tolerance: float = 0.02,
) -> DenseTailFeatures:
    """Solve for the features that enter two dense layers, then search for each picture separately.

    The message is one gradient, or one local step with a known learning rate. The number of samples may be unknown. A
    picture and its label are returned only if the attacker can prove the features of the picture.

    Args:
        steps: The number of Adam steps from each starting point.
        lr: The first learning rate of Adam, which falls to zero along a cosine.
        restarts: The largest number of starting points of the search for one picture. A search starts again if the
            features of its picture do not agree with the proven features.
        starts: The number of starting points of each search for features.
        iterations: The largest number of Levenberg-Marquardt iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
        tolerance: The largest relative error with which the features of a sample still count as proven.
    """
    return DenseTailFeatures(SearchSettings(starts, iterations, attempts, tolerance), steps, lr, restarts)


SPECS = (
    AttackSpec(
        name="dense_tail_features",
        factory=dense_tail_features,
        summary="Features by two spans (ours): the features of each sample exactly, then each picture by itself.",
        fits=fits,
        cost=Cost.SECONDS,
        rank=0,
        audit={"attempts": 30},
        exact=True,
    ),
)
