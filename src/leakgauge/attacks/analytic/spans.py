r"""Two spans: whole batches from two consecutive dense layers, solved exactly.

The gradient of a dense layer with a bias is :math:`[\partial W \mid \partial b] = \frac1N \sum_i \delta_i [x_i, 1]^T`.

1. Every :math:`[x_i, 1]` lies in the row space :math:`S_1` of the first dense layer's gradient. Its dimension is the
   number of distinct samples.
2. Every :math:`[\phi(W_1 x_i + b_1), 1]` lies in the row space :math:`S_2` of the next dense layer's gradient, where
   :math:`\phi` is the activation.
3. A point of :math:`S_1` has as many unknowns as the client has samples. Membership in :math:`S_2` gives as many
   equations as the first layer is wide. Levenberg-Marquardt from many starts solves them, for any activation, without
   labels or priors.
4. The attacker proves each solution with the known network, which also gives the label (:mod:`.proof`).
5. The gradients of proven samples are subtracted, and the search is repeated for the others.

We know of no earlier description. SPEAR (Dimitrov et al., NeurIPS 2024) and SPEAR++ also start from the low rank of the
first layer's gradient. They use the zeros that ReLU makes in :math:`\delta`, where this attack uses a second layer.

The attack fails where the number of samples is near the width of the first layer (a third of it for ReLU), above the
rank of the next layer's gradient (at most classes - 1 for an output layer), for samples that the model has learned so
well that their gradient is rounding error, and for noisy updates. It then returns fewer samples, or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit, TwoLayers, augmented, one_gradient_of
from leakgauge.attacks.analytic.layer_span import LayerSpan, rank_of
from leakgauge.attacks.analytic.levenberg import Problem, search
from leakgauge.attacks.analytic.proof import Candidates, Prover
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: The losses for which a sample can be proven.
LOSSES = ("cross_entropy", "binary_cross_entropy", "mse")
#: The largest squared relative distance from the second span of a point that is worth a proof.
PROMISING = 0.05**2
#: Points nearer to each other than this share of their norm are the same sample.
SAME = 1e-2


@dataclass(frozen=True)
class TwoSpans(Attack):
    """The search, proof and subtraction of samples. See :func:`two_spans` for the arguments."""

    starts: int = 48
    iterations: int = 60
    attempts: int = 6
    tolerance: float = 0.02

    def __post_init__(self) -> None:
        for name in ("starts", "iterations", "attempts"):
            whole_number(name, getattr(self, name))
        positive("tolerance", self.tolerance, up_to=0.5)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return the samples that could be proven.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
            report: The progress report, which counts proven samples.
        """
        peeling = _Peeling(self, observation, generator(seed, "two spans"))
        interrupted = False
        try:
            while peeling.continues:
                peeling.search_once()
                report(peeling.recovered, peeling.samples, peeling.residual)
        except KeyboardInterrupt:
            interrupted = True
        samples, labels = peeling.result()
        return Reconstruction(samples, labels, peeling.outcome(interrupted), loss=peeling.residual)


class _Peeling:
    """The state of the attack: the spans of the samples that are not found yet, and the proven samples."""

    def __init__(self, attack: TwoSpans, observation: Observation, random: torch.Generator) -> None:
        self.attack, self.observation, self.random = attack, observation, random
        self.chain = _chain(observation)
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
        """Whether samples are missing and attempts are left."""
        return self.distinct < self.rank <= self.separable and self.failures < self.attack.attempts

    def search_once(self) -> None:
        """Search from new starts, prove the ends and subtract the proven samples."""
        left = self.rank - self.distinct
        first, second = (span.reduced(left) for span in self.spans)
        problem = Problem(
            self.chain.augmented_weight() @ first.right, first.right[-1], second.right, self.chain.activation
        )
        points, residuals = search(problem, self._starts(problem, first), self.attack.iterations)
        points, residuals = _distinct(points, residuals)
        most_copies = self.samples - self.recovered - left + 1
        prove = Prover(self.chain, self.observation.data.classes, self.samples, most_copies)
        found = prove(points @ first.right.T, (first, second)) if len(points) else None
        self.searches += 1
        if found is None or not bool((found.error < self.attack.tolerance).any()):
            self.failures += 1
            return
        rows = found.error.argsort()[:left]
        rows = rows[found.error[rows] < self.attack.tolerance]
        self._subtract(found.rows(rows))
        self.failures, self.residual = 0, float(residuals[rows].max().sqrt())

    def _starts(self, problem: Problem, first: LayerSpan) -> Tensor:
        """Return starting points, one half from single neurons and the other half at random.

        The gradient of a neuron's weights divided by that of its bias is a combination of samples whose weights add up
        to 1. Those with a small norm are nearest to single samples.
        """
        neurons = first.left @ first.core
        ratios = neurons / (neurons @ problem.last)[:, None]
        norms = ratios.norm(dim=1).nan_to_num(torch.inf, torch.inf)
        order = norms.argsort()[: max(1, len(norms) // 2)]
        near = order[torch.randperm(len(order), generator=self.random).to(order.device)]
        near = near[: self.attack.starts // 2]
        size = norms[order[len(order) // 2]] / len(first.core) ** 0.5
        count = self.attack.starts - len(near)
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

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the proven samples, as a person sees them, and their labels."""
        data, dtype = self.observation.data, next(iter(self.observation.sent.values())).dtype
        if not self.proven:
            labels = torch.zeros(0, dtype=torch.long if data.classes is not None else dtype)
            return torch.zeros(0, *data.shape, dtype=dtype), labels
        copies = torch.cat([found.copies for found in self.proven]).long()
        inputs = torch.cat([found.inputs[0][:, :-1] for found in self.proven]).repeat_interleave(copies, 0)
        labels = torch.cat([found.targets for found in self.proven]).repeat_interleave(copies, 0)
        samples = self.chain.entrance.undo(inputs, data).to(dtype)
        return samples, labels if data.classes is not None else labels.to(dtype)

    def outcome(self, interrupted: bool) -> Outcome:
        """Return the end of the attack in words."""
        counted = f"{self.recovered} of {self.samples} samples solved for and proven"
        if interrupted:
            return Outcome("interrupted", self.searches, f"interrupted, with {counted}")
        if self.recovered and self.recovered == self.samples:
            return Outcome("converged", self.searches, f"{counted}, in {self.searches} searches")
        if not self.recovered:
            counted = f"none of {self.samples} samples could be proven, so none is returned"
        reason = ""
        if self.rank > self.separable:
            reason = f". The dense layer after the first one separates at most {self.separable} samples"
        return Outcome("finished", self.searches, f"{counted}, after {self.searches} searches{reason}")


def _distinct(points: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return promising points without repetitions, those with the smallest residual first."""
    order = residuals.argsort()
    order = order[residuals[order] < PROMISING]
    points, residuals = points[order], residuals[order]
    near = torch.cdist(points, points) < SAME * points.norm(dim=1)
    repeated = torch.tril(near, -1).any(1)
    return points[~repeated], residuals[~repeated]


def _chain(observation: Observation) -> TwoLayers:
    """Return the two dense layers, or raise where the attack cannot apply."""
    training = observation.training
    if training.loss not in LOSSES:
        raise DoesNotFit(f"made for the losses {', '.join(LOSSES)}, and this one is {training.loss!r}")
    if observation.data.classes is None and training.loss != "mse":
        raise DoesNotFit("a regression can only be solved with the loss 'mse'")
    if observation.data.classes is not None and training.loss == "mse":
        raise DoesNotFit("labels of classes can only be proven with cross-entropy")
    return TwoLayers(observation)


def separable_samples(chain: TwoLayers) -> int:
    """Return the largest rank of the second layer's gradient. With cross-entropy, that of an output layer loses one.

    Args:
        chain: The model.
    """
    outputs = chain.layer(chain.second).out_features
    is_last = chain.calls[-1][0] == chain.second
    return outputs - 1 if is_last and chain.loss == "cross_entropy" else outputs


def fits(observation: Observation) -> Fit:
    """Apply to one gradient of a model whose samples enter two dense layers in a row.

    Args:
        observation: The message of the client.
    """
    try:
        one_gradient_of(observation)
        chain = _chain(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    samples = observation.training.samples
    width, most = chain.layer(chain.first).out_features, separable_samples(chain)
    if samples is not None and samples > most:
        return Fit(
            False, f"the dense layer after the first one separates at most {most} samples, and here are {samples}"
        )
    if samples is not None and 2 * samples > width:
        return Fit(False, f"{samples} samples are too many for a first dense layer of {width} neurons")
    return Fit(True, "samples enter two dense layers in a row, whose gradients determine them")


def two_spans(*, starts: int = 48, iterations: int = 60, attempts: int = 6, tolerance: float = 0.02) -> TwoSpans:
    """Solve for the samples of one gradient in the row spaces of two consecutive dense layers.

    The samples must enter the first of these layers, up to a reshape. Both layers have biases, and an elementwise
    activation is between them. The message is one gradient, or one local step with a known learning rate. The number
    of samples may be unknown. Only samples that the attacker can prove are returned, with their labels.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of Levenberg-Marquardt iterations of each search.
        attempts: The number of searches in a row without a new sample after which the attack gives up.
        tolerance: The largest relative error of a proof.
    """
    return TwoSpans(starts, iterations, attempts, tolerance)


SPECS = (
    AttackSpec(
        name="two_spans",
        factory=two_spans,
        summary="Two spans (ours): whole batches solved exactly from two consecutive dense layers, any activation.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=20,
        audit={},
    ),
)
