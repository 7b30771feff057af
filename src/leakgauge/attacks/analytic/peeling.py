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
from leakgauge.attacks.analytic.layer_span import NOISE, LayerSpan, largest_rank, rank_of
from leakgauge.attacks.analytic.one_hot import one_hot_columns
from leakgauge.attacks.analytic.proof import Candidates, Prover
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
#: The rank of a gradient with more entries than this is not computed before an attack runs.
RANKED = 2_000_000
#: Singular values of the second layer's gradient below this many rounding errors are zero.
ROUNDING = 10.0


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
        self.samples, self.rank, ranks = _ranks(matrices, precision, observation.training.samples or 0, chain)
        self.spans = [LayerSpan.of(matrix, rank) for matrix, rank in zip(matrices, ranks, strict=True)]
        self.hidden = self.rank < self.samples
        if ranks[0] < self.rank or self.hidden:
            self.spans[0] = self.spans[0].in_all_outputs()
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
        first, second = (
            self._remaining(span, rounding) for span, rounding in zip(self.spans, self.rounding, strict=True)
        )
        search = self.finders[self.searches % len(self.finders)](first, second)
        points, residuals, progress, strictness, gradients = search
        most_copies = self.samples - self.recovered - left + 1
        prove = Prover(self.chain, self.observation.data.classes, self.samples, most_copies, left, self.hidden)
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

    def _remaining(self, span: LayerSpan, rounding: float) -> LayerSpan:
        """Return the gradient of a layer without its singular values that are zero after the subtraction of samples."""
        left = self.rank - self.distinct
        if (
            span.right.shape[1] < self.rank or self.hidden
        ):  # The inputs of this layer are linearly dependent, and may stay so.
            left = min(left, max(1, int((torch.linalg.svdvals(span.core) > rounding).sum())))
        return span.reduced(min(left, span.right.shape[1]))

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


def _ranks(
    matrices: Sequence[Tensor], precision: float, samples: int, chain: TwoLayers
) -> tuple[int, int, tuple[int, int]]:
    """Return the number of samples, the number of distinct samples that are visible, and the ranks of both gradients.

    The rank of a layer's gradient is lower than the number of distinct samples if the layer's inputs are linearly
    dependent, as rows of a table with one-hot columns, if the layer has few outputs, or if the model has learned some
    samples so well that their gradients are only rounding errors.

    Args:
        matrices: The gradients of both layers.
        precision: The relative precision of their values.
        samples: The number of samples, or 0 if it is unknown.
        chain: The two dense layers.
    """
    first = rank_of(matrices[0], precision, samples)
    values = [torch.linalg.svdvals(matrix) for matrix in matrices]
    second = int((values[1] > ROUNDING * precision * values[1][0]).sum())
    largest = min(separable_samples(chain), largest_rank(matrices[1]))
    without_noise = first < len(values[0]) and float(values[0][first]) < ROUNDING * precision * float(values[0][0])
    limited = second >= largest and second != samples
    distinct = second if without_noise and not limited else first
    distinct = min(distinct, samples or distinct)
    return samples or distinct, distinct, (min(first, distinct), max(1, min(distinct, second, largest)))


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


def separable_samples(chain: TwoLayers) -> int:
    """Return the largest number of samples for which the second layer's gradient gives enough equations.

    This is the largest possible rank of the gradient. It equals the number of the layer's outputs, or one less for an
    output layer with cross-entropy.

    Args:
        chain: The two dense layers.
    """
    outputs = chain.layer(chain.second).out_features
    is_last = chain.calls[-1][0] == chain.second
    return outputs - 1 if is_last and chain.loss == "cross_entropy" else outputs


def visible_samples(chain: TwoLayers, observation: Observation) -> str:
    """Return a note if the gradients of the two layers show fewer samples than there are.

    Some samples can then not be found, for example copies of other samples. The note is empty if all are visible. If
    the first layer's gradient has its full rank and there are still more samples, :class:`DoesNotFit` is raised.

    Args:
        chain: The two dense layers.
        observation: The message of the client.
    """
    gradient, samples = one_gradient_of(observation), observation.training.samples
    matrices = [augmented(gradient, path) for path in (chain.first, chain.second)]
    if samples is None or (matrices[0].numel() > RANKED and samples <= largest_rank(matrices[0])):
        return ""
    precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps / 2
    _, visible, (rank, _) = _ranks(matrices, precision, samples, chain)
    if visible >= samples:
        return ""
    largest = largest_rank(matrices[0])
    if rank == largest:
        raise DoesNotFit(
            f"the gradient of the dense layer {chain.first!r} has a rank of at most {largest}, so it does not separate "
            f"{samples} samples"
        )
    return (
        f". The gradient shows {visible} of {samples} samples. The others are copies, were learned before, or are "
        "hidden by noise"
    )


def check_size(chain: TwoLayers, samples: int | None, most: int | None = None) -> None:
    """Raise :class:`DoesNotFit` if the client has more samples than the attack can solve for.

    Args:
        chain: The two dense layers.
        samples: The number of samples. ``None`` if it is unknown.
        most: The largest number of samples that the second layer allows. By default, only the first layer sets a limit.
    """
    width = chain.layer(chain.first).out_features
    if samples is not None and most is not None and samples > most:
        raise DoesNotFit(f"the dense layer {chain.second!r} separates at most {most} samples, and here are {samples}")
    separates = width if one_hot_columns(chain) is not None and most is not None else width // 2
    if samples is not None and samples > separates:
        raise DoesNotFit(f"{samples} samples are too many for the {width} neurons of the dense layer {chain.first!r}")
