"""The search for the inputs of a dense layer. Each sample is found, proven and subtracted from the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit, augmented, one_gradient_of
from leakgauge.attacks.analytic.finders import (
    CurveFinder,
    Finder,
    KinkFinder,
    OneHotFinder,
    SecondSpanFinder,
    inputs_from,
    starting_points,
)
from leakgauge.attacks.analytic.layer_span import NOISE, LayerSpan
from leakgauge.attacks.analytic.one_hot import one_hot_columns
from leakgauge.attacks.analytic.polishing import polished
from leakgauge.attacks.analytic.proof import Candidates, Prover, joined
from leakgauge.attacks.analytic.separability import ranks_of
from leakgauge.attacks.analytic.two_layers import TwoLayers
from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: The losses for which a sample can be proven.
PROVABLE = ("cross_entropy", "binary_cross_entropy", "mse")

#: The number of points that are known to be wrong, against which proofs are measured.
WRONG_POINTS = 32
#: Points differ if their distance is above this share of their norm.
DIFFERENT = 0.2
#: The largest number of times that the inputs of proven samples are computed again.
REFINEMENTS = 4
#: Inputs are not computed again if the errors of all proofs are below this.
EXACT = 1e-6
#: The factor by which proofs must be better if the scale of the points is searched for, too.
UNSCALED = 10.0
#: A sample is exact if the error of its proof is below this. Errors of proofs are about as large as those of samples.
SHARP = 2e-3


@dataclass(frozen=True)
class SearchSettings:
    """The settings of the search for samples.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of Levenberg-Marquardt iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
        tolerance: The largest relative error with which a sample still counts as proven.
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
        finders: The search functions. Each search uses the next function of the list. After the last function, the
            first function is used again.
        most: The largest number of distinct samples that the attack can solve for.
    """

    def __init__(
        self,
        settings: SearchSettings,
        chain: TwoLayers,
        observation: Observation,
        finders: Sequence[Finder],
        most: int,
    ) -> None:
        self.settings, self.chain, self.observation = settings, chain, observation
        self.finders, self.most = finders, most
        gradient = one_gradient_of(observation)
        matrices = [augmented(gradient, path) for path in (self.chain.first, self.chain.second)]
        precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps / 2
        self.samples, self.rank, ranks = ranks_of(matrices, precision, observation.training.samples or 0, chain)
        self.spans = [LayerSpan.of(matrix, rank) for matrix, rank in zip(matrices, ranks, strict=True)]
        self.hidden = self.rank < self.samples
        if ranks[0] < self.rank or self.hidden:
            self.spans[0] = self.spans[0].in_all_outputs()
        self.whole = self.spans
        self.rounding = [NOISE * precision * float(span.core.norm()) for span in self.spans]
        self.proven: list[Candidates] = []
        self.searches = self.failures = self.distinct = self.recovered = 0
        self.residual = float("nan")

    def reconstruction(self, report: Report) -> Reconstruction:
        """Search until all samples are proven or no attempt is left, and return the proven samples.

        Args:
            report: The progress function, which gets the number of proven samples.
        """
        interrupted = self.run(report)
        inputs, labels = self.result()
        dtype = next(iter(self.observation.sent.values())).dtype
        samples = self.chain.samples(inputs, self.observation.data).to(dtype)
        labels = labels.to(dtype) if labels.is_floating_point() else labels
        return Reconstruction(samples, labels, self.outcome(interrupted), loss=self.residual)

    @property
    def continues(self) -> bool:
        """Whether some samples are not found yet and some attempts are left."""
        return self.distinct < self.rank <= self.most and self.failures < self.settings.attempts

    def search_once(self) -> None:
        """Search for inputs that may be samples, try to prove that they are, and subtract the proven samples."""
        left = self.rank - self.distinct
        first, second = self._remaining()
        search = self.finders[self.searches % len(self.finders)](first, second)
        points, residuals, progress, strictness, gradients = search
        most_copies = self.samples - self.recovered - left + 1
        shown = min(left, max(len(first.core), len(second.core)))
        prove = Prover(self.chain, self.observation.data.classes, self.samples, most_copies, shown, self.hidden)
        wrong = self._wrong(first)
        if len(points) and len(wrong):
            prove = prove.weighted(wrong, (first, second), self.settings.tolerance)
        found = prove(points @ first.right.T, (first, second)) if len(points) else None
        if found is not None and gradients is not None:
            found = self._refined(found, gradients, prove, (first, second))
        self.searches += 1
        tolerance = self.settings.tolerance / strictness
        if not self.chain.has_bias(self.chain.first):
            tolerance /= UNSCALED
        if found is None or not bool((found.error < tolerance).any()):
            self.failures = 0 if progress else self.failures + 1
            return
        rows = found.error.argsort()[:left]
        sharp = found.error[rows] < min(SHARP, tolerance)
        rows = rows[sharp] if bool(sharp.any()) else rows[found.error[rows] < tolerance]
        rows = rows[found.copies[rows].cumsum(0) <= self.samples - self.recovered]
        self._subtract(found.rows(rows))
        self.failures, self.residual = 0, float(residuals[rows].max().sqrt())

    def _remaining(self) -> tuple[LayerSpan, LayerSpan]:
        """Return the gradients of both layers without singular values that are zero after the subtraction of samples.

        If some samples are hidden, the smallest singular values of both layers may be noise. Both layers must still
        show the same number of samples.
        """
        left = self.rank - self.distinct
        ranks = []
        for span, rounding in zip(self.spans, self.rounding, strict=True):
            rank = min(left, span.right.shape[1])
            if (
                span.right.shape[1] < self.rank or self.hidden
            ):  # The inputs of this layer are linearly dependent, and may stay so.
                rank = min(rank, max(1, int((torch.linalg.svdvals(span.core) > rounding).sum())))
            ranks.append(rank)
        if self.whole[0].right.shape[1] == self.whole[1].right.shape[1]:
            ranks = [min(ranks)] * 2
        return self.spans[0].reduced(ranks[0]), self.spans[1].reduced(ranks[1])

    def _refined(
        self, found: Candidates, gradients: Tensor, prove: Prover, spans: tuple[LayerSpan, LayerSpan]
    ) -> Candidates:
        """Improve the candidates (inputs that may be samples) with more exact gradients, and return them.

        The known network gives the gradient of a proven sample more exactly than the search. More exact gradients
        improve all inputs, because each input is computed from the gradients of all samples. The inputs of samples with
        small gradients improve most.
        """
        first = spans[0]
        for _ in range(REFINEMENTS):
            proven = found.error < self.settings.tolerance
            if not bool(proven.any()) or bool((found.error < EXACT).all()):
                break
            exact = found.gradients[0] @ first.left
            gradients = torch.where(proven[:, None], exact / exact.norm(dim=1, keepdim=True), gradients)
            points = inputs_from(first, gradients, self.chain.last_entry(first.right))
            again = prove(points @ first.right.T, spans)
            if int((again.error < self.settings.tolerance).sum()) < int(proven.sum()):
                break
            found = again
        return found

    def _wrong(self, first: LayerSpan) -> Tensor:
        """Return inputs of the first layer that are certainly not samples.

        Each returned input is the mean of two different inputs that may be samples. If the layer has a bias, each input
        has an appended 1. The result is empty if only one sample is left, because only one input is then possible.
        """
        if len(first.core) == 1:
            return first.right.T[:0]
        random = generator(self.searches, "wrong points")
        points = starting_points(first, self.chain.last_entry(first.right), 4 * WRONG_POINTS, random)
        points = points[torch.randperm(len(points), generator=random).to(points.device)]
        one, other = points[: len(points) // 2], points[len(points) // 2 : len(points) // 2 * 2]
        apart = (one - other).norm(dim=1) > DIFFERENT * torch.maximum(one.norm(dim=1), other.norm(dim=1))
        return (one + other)[apart][:WRONG_POINTS] / 2 @ first.right.T

    def _subtract(self, found: Candidates) -> None:
        """Subtract the gradients of proven samples, whose inputs are computed again with those of all others."""
        self.proven.append(found)
        self.distinct += len(found.targets)
        self.recovered += int(found.copies.sum())
        every = joined(self.proven)
        whole = [span.reduced(span.right.shape[1]) for span in self.whole]
        biases = all(self.chain.has_bias(path) for path in (self.chain.first, self.chain.second))
        if biases and all(self.rank == len(span.core) for span in whole):
            copies = self.samples - self.rank + 1
            prove = Prover(self.chain, self.observation.data.classes, self.samples, copies, self.rank, self.hidden)
            every = polished(self.chain, whole, every, prove)
        self.proven = [every]
        weights = every.copies / self.samples
        pairs = zip(self.whole, every.gradients, every.inputs, strict=True)
        self.spans = [span.without(gradients, inputs, weights) for span, gradients, inputs in pairs]

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
        width = self.chain.layer(self.chain.first).in_features
        inputs = torch.cat([found.inputs[0][:, :width] for found in self.proven])
        labels = torch.cat([found.targets for found in self.proven])
        return inputs.repeat_interleave(copies, 0), labels.repeat_interleave(copies, 0)

    def outcome(self, interrupted: bool) -> Outcome:
        """Return how the attack ended, with a sentence for people."""
        counted = f"{self.recovered} of {self.samples} samples solved for and proven"
        searches = "1 search" if self.searches == 1 else f"{self.searches} searches"
        if interrupted:
            return Outcome("interrupted", self.searches, f"interrupted, with {counted}")
        worst = max((float(found.error.max()) for found in self.proven), default=0.0)
        if worst > SHARP:
            blurred = sum(int(found.copies[found.error > SHARP].sum()) for found in self.proven)
            words = (
                f"{self.recovered} of {self.samples} samples solved for, {self.recovered - blurred} of them proven and "
                f"{blurred} not exact, with an estimated relative error of up to {worst:.1g}"
            )
            return Outcome("finished", self.searches, f"{words}, after {searches}")
        if self.recovered and self.recovered == self.samples:
            return Outcome("converged", self.searches, f"{counted}, in {searches}")
        if not self.recovered:
            counted = f"none of {self.samples} samples could be proven, so none is returned"
        reason = ""
        if self.rank > self.most:
            reason = f". The gradients of these layers separate at most {self.most} samples"
        return Outcome("finished", self.searches, f"{counted}, after {searches}{reason}")


def factor_finders(chain: TwoLayers, settings: SearchSettings, random: torch.Generator) -> list[Finder]:
    """Return the searches that use the column spaces of both layers' gradients.

    Args:
        chain: The two dense layers.
        settings: The settings of the search.
        random: The generator of the random starts.
    """
    branches = chain.branches()
    if branches is None:
        return [CurveFinder(chain, settings.starts, settings.iterations, random)]
    return [KinkFinder(chain, branches, settings.starts, settings.iterations, random)]


def span_finders(chain: TwoLayers, settings: SearchSettings, random: torch.Generator) -> list[Finder]:
    """Return the searches that use the row spaces of both layers' gradients.

    Args:
        chain: The two dense layers.
        settings: The settings of the search.
        random: The generator of the random starts.
    """
    plain = SecondSpanFinder(chain, settings.starts, settings.iterations, random)
    columns = one_hot_columns(chain)
    if columns is None:
        return [plain]
    return [OneHotFinder(chain, columns, 2 * settings.starts, settings.iterations, random), plain]


def chain_of(observation: Observation, on_samples: bool = True, needs_bias: bool = True) -> TwoLayers:
    """Return the two dense layers, or raise :class:`DoesNotFit` if their inputs cannot be solved for.

    Args:
        observation: The message of the client.
        on_samples: Whether the first layer gets the samples themselves. Otherwise it gets features.
        needs_bias: Whether layers without a bias are refused.
    """
    training = observation.training
    if training.loss not in PROVABLE:
        raise DoesNotFit(f"made for the losses {', '.join(PROVABLE)}, and this one is {training.loss!r}")
    if observation.data.classes is None and training.loss != "mse":
        raise DoesNotFit("a regression can only be solved with the loss 'mse'")
    if observation.data.classes is not None and training.loss == "mse":
        raise DoesNotFit("labels of classes can only be proven with cross-entropy")
    chain = TwoLayers(observation, on_samples, needs_bias)
    chain.check_one_output()
    return chain
