r"""Features of a convolutional network by two spans, then each picture by itself from its features.

A convolutional network with two dense layers at its end shows them the features :math:`f(x_i)` in the place of samples.
:mod:`.spans` solves for these features exactly. The batch then falls apart into single pictures, and each one is

.. math:: \arg\min_x \; \lVert f(x) - f_i \rVert^2 / \lVert f_i \rVert^2 ,

without labels, priors or the other samples of the batch. Adam starts at N(0, 1) and the learning rate falls to zero.
Pixels are clamped to their range in each step. We know of no earlier description.

Features are proven and pictures are not, because pooling and ReLU can map several pictures to nearly the same features.
The loss shows how well the features agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import (
    DoesNotFit,
    Reached,
    TwoLayers,
    copy_of_model,
    one_gradient_of,
    stop_at_input,
)
from leakgauge.attacks.analytic.peeling import Peeling, SearchSettings, chain_of, check_size
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.progress import Report, silent
from leakgauge.core.seeding import generator


@dataclass(frozen=True)
class DenseTailFeatures(Attack):
    """The solution for features, and the search for pictures that have them.

    Args:
        search: The settings of the search for features.
        steps: The steps of Adam.
        lr: The first learning rate of Adam.
    """

    search: SearchSettings
    steps: int = 1500
    lr: float = 0.1

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)
        positive("lr", self.lr)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return a picture for each sample whose features could be proven.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
            report: The progress report, which counts the steps of Adam.
        """
        random = generator(seed, "dense tail features")
        peeling = Peeling(self.search, _tail(observation), observation, random)
        interrupted = peeling.run(silent)
        features, labels = peeling.result()
        dtype = next(iter(observation.sent.values())).dtype
        start = torch.randn(len(features), *observation.data.shape, dtype=dtype, generator=random)
        pictures, losses = start.to(observation.device), torch.zeros(0)
        if len(features):
            extract = _extractor(observation, peeling.chain.first, dtype)
            descent = _Descent(extract, features.to(dtype), observation.data, pictures)
            interrupted = descent.run(0 if interrupted else self.steps, self.lr, report) or interrupted
            pictures, losses = descent.best, descent.losses
        samples = observation.data.denormalise(pictures)
        samples = samples.clamp(0, 1) if observation.data.bounded else samples
        labels = labels.to(dtype) if labels.is_floating_point() else labels
        loss = float(losses.mean()) if len(losses) else math.nan
        return Reconstruction(samples, labels, _outcome(peeling, interrupted, loss), loss=loss)


class _Descent:
    """Adam on all pictures at once, each with its own loss. The best iterate of each picture is kept."""

    def __init__(self, extract: Callable[[Tensor], Tensor], features: Tensor, data: DataSpec, pictures: Tensor) -> None:
        self.extract, self.features = extract, features
        self.best = pictures.clone()
        self.pictures = pictures.clone().requires_grad_()
        self.losses = torch.full((len(pictures),), torch.inf, dtype=pictures.dtype, device=pictures.device)
        limits = (data.normalise(torch.full_like(pictures[:1], value)) for value in (0.0, 1.0))
        self.limits = tuple(limits) if data.bounded else None

    def run(self, steps: int, lr: float, report: Report) -> bool:
        """Take the steps. Return whether Ctrl-C ended them.

        Args:
            steps: The number of steps.
            lr: The first learning rate, which falls to zero along a cosine.
            report: The progress report.
        """
        optimiser = torch.optim.Adam([self.pictures], lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
        self._clamp()
        try:
            for step in range(steps):
                optimiser.zero_grad()
                losses = self._losses()
                losses.sum().backward()
                self._keep_best(losses.detach())
                optimiser.step()
                schedule.step()
                self._clamp()
                report(step + 1, steps, float(self.losses.mean()))
        except KeyboardInterrupt:
            return True
        with torch.no_grad():
            self._keep_best(self._losses())
        return False

    def _losses(self) -> Tensor:
        difference = (self.extract(self.pictures) - self.features).square().sum(1)
        return difference / self.features.square().sum(1).clamp_min(1e-30)

    def _keep_best(self, losses: Tensor) -> None:
        better = losses < self.losses
        self.losses = torch.where(better, losses, self.losses)
        self.best[better] = self.pictures.detach()[better]

    def _clamp(self) -> None:
        if self.limits is not None:
            with torch.no_grad():
                self.pictures.copy_(self.pictures.clamp(*self.limits))


def _extractor(observation: Observation, path: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return the function from samples to the inputs of a dense layer."""
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
    """Return the two dense layers after the features, or raise where the attack cannot apply."""
    chain = chain_of(observation, on_samples=False)
    seen = next(inputs for path, inputs in chain.calls if path == chain.first)
    if seen.shape[1] == math.prod(observation.data.shape) and _gets_samples(observation):
        raise DoesNotFit("samples enter the dense layers themselves, so two_spans solves for them directly")
    extract = _extractor(observation, chain.first, torch.double)
    one, other = torch.randn(2, 2, *observation.data.shape, dtype=torch.double).to(observation.device)
    with torch.no_grad():
        alone, together = extract(one), extract(torch.stack([one[0], other[1]]))
    if not torch.allclose(alone[0], together[0], rtol=1e-9, atol=1e-12):
        raise DoesNotFit("the features mix the samples of a batch or are random, as batch norm and dropout in training")
    return chain


def _gets_samples(observation: Observation) -> bool:
    try:
        chain_of(observation)
    except DoesNotFit:
        return False
    return True


def _outcome(peeling: Peeling, interrupted: bool, loss: float) -> Outcome:
    outcome = peeling.outcome(interrupted)
    if not peeling.recovered:
        return outcome
    words = f"features: {outcome}. The pictures have these features up to a relative squared error of {loss:.2g}"
    return Outcome(outcome.kind, outcome.step, words)


def fits(observation: Observation) -> Fit:
    """Apply to one gradient of a network that ends in two dense layers.

    Args:
        observation: The message of the client.
    """
    try:
        one_gradient_of(observation)
        check_size(_tail(observation), observation.training.samples)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, "the network ends in two dense layers, whose gradients determine the features of each sample")


def dense_tail_features(
    *,
    steps: int = 1500,
    lr: float = 0.1,
    starts: int = 48,
    iterations: int = 60,
    attempts: int = 6,
    tolerance: float = 0.02,
) -> DenseTailFeatures:
    """Solve for the features that enter two dense layers, then search for each picture by itself.

    The message is one gradient, or one local step with a known learning rate. The number of samples may be unknown.
    Only samples whose features the attacker can prove are returned, with their labels.

    Args:
        steps: The steps of Adam for the pictures.
        lr: The first learning rate of Adam, which falls to zero along a cosine.
        starts: The number of starting points of each search for features.
        iterations: The largest number of Levenberg-Marquardt iterations of each search.
        attempts: The number of searches in a row without a new sample after which the attack gives up.
        tolerance: The largest relative error of a proof.
    """
    return DenseTailFeatures(SearchSettings(starts, iterations, attempts, tolerance), steps, lr)


SPECS = (
    AttackSpec(
        name="dense_tail_features",
        factory=dense_tail_features,
        summary="Features by two spans (ours): the features of each sample exactly, then each picture by itself.",
        fits=fits,
        cost=Cost.SECONDS,
        rank=10,
        audit={},
    ),
)
