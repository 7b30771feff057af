"""The search for the inputs of a dense layer. Each sample is found, proven and subtracted from the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit, TwoLayers, augmented, one_gradient_of
from leakgauge.attacks.analytic.layer_span import LayerSpan, rank_of
from leakgauge.attacks.analytic.levenberg import Problem, search
from leakgauge.attacks.analytic.proof import Candidates, Prover
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report

#: The losses for which a sample can be proven.
PROVABLE = ("cross_entropy", "binary_cross_entropy", "mse")
#: The largest squared relative distance from the second span of a point that is worth a proof.
PROMISING = 0.05**2
#: Points nearer to each other than this share of their norm are the same sample.
SAME = 1e-2


@dataclass(frozen=True)
class SearchSettings:
    """The settings of the search for samples.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of Levenberg-Marquardt iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
        tolerance: The largest relative error of a proof.
    """

    starts: int = 48
    iterations: int = 60
    attempts: int = 6
    tolerance: float = 0.02

    def __post_init__(self) -> None:
        for name in ("starts", "iterations", "attempts"):
            whole_number(name, getattr(self, name))
        positive("tolerance", self.tolerance, up_to=0.5)


class Peeling:
    """The state of the attack, with the gradients of the samples that are not found yet, and the proven samples.

    Args:
        settings: The settings of the search.
        chain: The two dense layers.
        observation: The message of the client.
        random: The generator of the random starts.
    """

    def __init__(
        self, settings: SearchSettings, chain: TwoLayers, observation: Observation, random: torch.Generator
    ) -> None:
        self.settings, self.chain, self.observation, self.random = settings, chain, observation, random
        gradient = one_gradient_of(observation)
        matrices = [augmented(gradient, path) for path in (self.chain.first, self.chain.second)]
        precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps / 2
        rank = rank_of(matrices[0], precision)
        self.samples = observation.training.samples or rank
        self.rank = min(rank, self.samples)
        self.spans = [LayerSpan.of(matrix, self.rank) for matrix in matrices]
        self.separable = separable_samples(self.chain)
        self.proven: list[Candidates] = []
        self.searches = self.failures = self.distinct = self.recovered = 0
        self.residual = float("nan")

    @property
    def continues(self) -> bool:
        """Whether some samples are not found yet and some attempts are left."""
        return self.distinct < self.rank <= self.separable and self.failures < self.settings.attempts

    def search_once(self) -> None:
        """Search from new starting points, try to prove the points that are found, and subtract the proven samples."""
        left = self.rank - self.distinct
        first, second = (span.reduced(left) for span in self.spans)
        problem = Problem(
            self.chain.augmented_weight() @ first.right, first.right[-1], second.right, self.chain.activation
        )
        points, residuals = search(problem, self._starts(problem, first), self.settings.iterations)
        points, residuals = _distinct(points, residuals)
        most_copies = self.samples - self.recovered - left + 1
        prove = Prover(self.chain, self.observation.data.classes, self.samples, most_copies)
        found = prove(points @ first.right.T, (first, second)) if len(points) else None
        self.searches += 1
        if found is None or not bool((found.error < self.settings.tolerance).any()):
            self.failures += 1
            return
        rows = found.error.argsort()[:left]
        rows = rows[found.error[rows] < self.settings.tolerance]
        rows = rows[found.copies[rows].cumsum(0) <= self.samples - self.recovered]
        self._subtract(found.rows(rows))
        self.failures, self.residual = 0, float(residuals[rows].max().sqrt())

    def _starts(self, problem: Problem, first: LayerSpan) -> Tensor:
        """Return starting points, one half from single neurons and the other half at random.

        The gradient of a neuron's weights divided by the gradient of its bias is a weighted sum of samples, with
        weights that add up to 1. The sums with a small norm are nearest to single samples, so the attack starts from
        these sums.
        """
        neurons = first.left @ first.core
        ratios = neurons / (neurons @ problem.last)[:, None]
        norms = ratios.norm(dim=1).nan_to_num(torch.inf, torch.inf)
        order = norms.argsort()[: max(1, len(norms) // 2)]
        near = order[torch.randperm(len(order), generator=self.random).to(order.device)]
        near = near[: self.settings.starts // 2]
        size = norms[order[len(order) // 2]] / len(first.core) ** 0.5
        count = self.settings.starts - len(near)
        drawn = torch.randn(count, len(first.core), dtype=torch.double, generator=self.random)
        starts = torch.cat([ratios[near], drawn.to(ratios) * size])
        return starts[starts.isfinite().all(1)]

    def _subtract(self, found: Candidates) -> None:
        weights = found.copies / self.samples
        pairs = zip(self.spans, found.gradients, found.inputs, strict=True)
        self.spans = [span.without(gradients, inputs, weights) for span, gradients, inputs in pairs]
        self.proven.append(found)
        self.distinct += len(found.targets)
        self.recovered += int(found.copies.sum())

    def run(self, report: Report) -> bool:
        """Search until all samples are found or no attempt is left. Return whether Ctrl-C ended the search.

        Args:
            report: The progress function, which gets the number of proven samples.
        """
        try:
            while self.continues:
                self.search_once()
                report(self.recovered, self.samples, self.residual)
        except KeyboardInterrupt:
            return True
        return False

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the inputs of the first layer and the labels of all proven samples, in double precision."""
        if not self.proven:
            width = self.chain.layer(self.chain.first).in_features
            inputs = torch.zeros(0, width, dtype=torch.double, device=self.observation.device)
            whole = self.observation.data.classes is not None
            return inputs, torch.zeros(0, dtype=torch.long if whole else torch.double, device=inputs.device)
        copies = torch.cat([found.copies for found in self.proven]).long()
        inputs = torch.cat([found.inputs[0][:, :-1] for found in self.proven])
        labels = torch.cat([found.targets for found in self.proven])
        return inputs.repeat_interleave(copies, 0), labels.repeat_interleave(copies, 0)

    def outcome(self, interrupted: bool) -> Outcome:
        """Return how the attack ended, with a sentence for people."""
        counted = f"{self.recovered} of {self.samples} samples solved for and proven"
        searches = "1 search" if self.searches == 1 else f"{self.searches} searches"
        if interrupted:
            return Outcome("interrupted", self.searches, f"interrupted, with {counted}")
        if self.recovered and self.recovered == self.samples:
            return Outcome("converged", self.searches, f"{counted}, in {searches}")
        if not self.recovered:
            counted = f"none of {self.samples} samples could be proven, so none is returned"
        reason = ""
        if self.rank > self.separable:
            reason = f". The dense layer after the first one separates at most {self.separable} samples"
        return Outcome("finished", self.searches, f"{counted}, after {searches}{reason}")


def _distinct(points: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points with small residuals, without repetitions. The point with the smallest residual is first."""
    order = residuals.argsort()
    order = order[residuals[order] < PROMISING]
    points, residuals = points[order], residuals[order]
    near = torch.cdist(points, points) < SAME * points.norm(dim=1)
    repeated = torch.tril(near, -1).any(1)
    return points[~repeated], residuals[~repeated]


def chain_of(observation: Observation, on_samples: bool = True) -> TwoLayers:
    """Return the two dense layers, or raise :class:`DoesNotFit` if their inputs cannot be solved for.

    Args:
        observation: The message of the client.
        on_samples: Whether the first layer gets the samples themselves. Otherwise it gets features.
    """
    training = observation.training
    if training.loss not in PROVABLE:
        raise DoesNotFit(f"made for the losses {', '.join(PROVABLE)}, and this one is {training.loss!r}")
    if observation.data.classes is None and training.loss != "mse":
        raise DoesNotFit("a regression can only be solved with the loss 'mse'")
    if observation.data.classes is not None and training.loss == "mse":
        raise DoesNotFit("labels of classes can only be proven with cross-entropy")
    return TwoLayers(observation, on_samples)


def separable_samples(chain: TwoLayers) -> int:
    """Return the largest possible rank of the second layer's gradient, which is the number of separable samples.

    This is the number of the layer's outputs, or one less for an output layer with cross-entropy.

    Args:
        chain: The two dense layers.
    """
    outputs = chain.layer(chain.second).out_features
    is_last = chain.calls[-1][0] == chain.second
    return outputs - 1 if is_last and chain.loss == "cross_entropy" else outputs


def check_size(chain: TwoLayers, samples: int | None) -> None:
    """Raise :class:`DoesNotFit` if the client has more samples than the layers can separate.

    Args:
        chain: The two dense layers.
        samples: The number of samples. ``None`` if it is unknown.
    """
    width, most = chain.layer(chain.first).out_features, separable_samples(chain)
    if samples is not None and samples > most:
        raise DoesNotFit(f"the dense layer {chain.second!r} separates at most {most} samples, and here are {samples}")
    if samples is not None and 2 * samples > width:
        raise DoesNotFit(f"{samples} samples are too many for the {width} neurons of the dense layer {chain.first!r}")
