"""The attack that solves for the features that enter an output layer, then searches separately for each picture.

It is the counterpart of :mod:`.features` for networks that end in a single dense layer. The module :mod:`.output_layer`
solves for the features of all samples, and :mod:`.picture_search` searches for pictures that have these features. We
know of no earlier description of this attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DUMMIES, DenseChain, DoesNotFit, augmented, one_gradient_of
from leakgauge.attacks.analytic.features import extractor
from leakgauge.attacks.analytic.layer_span import rank_of
from leakgauge.attacks.analytic.output_layer import OutputEquations
from leakgauge.attacks.analytic.picture_search import STUCK, PictureSearch, Schedule
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.label_counts import estimate_label_counts
from leakgauge.attacks.inversion.labels import LastLayer, granted_labels
from leakgauge.attacks.inversion.stopping import Kind, Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import not_negative, positive, whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: Solutions with a larger residual, as a share of the gradient, are no proof of the features. Right labels leave the
#: rounding of the message, and wrong ones left 4e-5 and more.
PROVEN = 1e-5
#: The starts and iterations with which other labels are tried if the inferred ones prove nothing.
TRIED = (8, 60)
#: The largest number of changes of one label, and of changes of two labels, that are tried.
OTHERS, OTHER_PAIRS = 40, 120


@dataclass(frozen=True)
class OutputFeatures(Attack):
    """The attack that solves for the inputs of the output layer, then searches for pictures with these features.

    Args:
        starts: The number of starting points of the search for features.
        iterations: The largest number of iterations of this search.
        schedule: The settings of the search for pictures.
    """

    uses_defences: ClassVar[bool] = False

    starts: int
    iterations: int
    schedule: Schedule

    def __post_init__(self) -> None:
        whole_number("starts", self.starts)
        whole_number("iterations", self.iterations)
        whole_number("steps", self.schedule.steps)
        whole_number("restarts", self.schedule.restarts)
        positive("lr", self.schedule.lr)
        not_negative("the weight of total variation", self.schedule.tv)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return a picture for each sample if the features could be proven, and otherwise none.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
            report: The progress function, which gets the number of Adam steps.
        """
        layer = _output_layer(observation)
        random = generator(seed, "output features")
        labels, features, residual = _proven(layer, observation, (self.starts, self.iterations), random)
        dtype = next(iter(observation.sent.values())).dtype
        proven = residual < PROVEN
        search = PictureSearch(
            extractor(observation, layer.first, dtype),
            features.to(dtype) if proven else features[:0].to(dtype),
            observation.data,
            random,
        )
        interrupted = search.run(self.schedule, report) if proven else False
        loss = float(search.losses.mean()) if proven else float("nan")
        samples, labels = search.samples, labels if proven else labels[:0]
        determined = search.determined and bool((search.losses <= STUCK).all())
        return Reconstruction(samples, labels, _outcome(residual, loss, interrupted, determined), loss=loss)


def _proven(
    layer: DenseChain, observation: Observation, effort: tuple[int, int], random: torch.Generator
) -> tuple[Tensor, Tensor, float]:
    """Return labels, the features of all samples and the residual, for the first labels that prove the features.

    If no labels prove them, the inferred labels are returned with their residual.
    """
    inferred, *others = _likely_labels(observation, random)
    features, residual = _solved(layer, observation, inferred, effort, random)
    if residual < PROVEN or math.isinf(residual):
        return inferred, features, residual
    for labels in others:
        found, rest = _solved(layer, observation, labels, TRIED, random)
        if rest < PROVEN:
            return labels, found, rest
    return inferred, features, residual


def _likely_labels(observation: Observation, random: torch.Generator) -> Iterator[Tensor]:
    """Yield the labels that are given or inferred. If they are inferred, then yield those with one or two others.

    The most likely ones come first. These move samples from classes with more samples than their estimated counts to
    classes with less.
    """
    labels = LastLayer()(observation, random)
    yield labels
    if granted_labels(observation) is not None:
        return
    classes = int(observation.data.classes or 0)
    counts = torch.bincount(labels.long(), minlength=classes)
    excess = (counts - estimate_label_counts(observation, random).to(counts.device)).double().tolist()
    moves = [(excess[less] - excess[more], less, more) for less in labels.unique().tolist() for more in range(classes)]
    moves = sorted((move for move in moves if move[1] != move[2]), reverse=True)
    pairs = sorted(((a[0] + b[0], a, b) for a, b in combinations(moves[:OTHERS], 2)), reverse=True)
    changes = [(move,) for move in moves[:OTHERS]] + [pair[1:] for pair in pairs[:OTHER_PAIRS]]
    seen = {tuple(counts.tolist())}
    for change in changes:
        moved = counts.clone()
        for _, less, more in change:
            moved[less], moved[more] = moved[less] - 1, moved[more] + 1
        key = tuple(moved.tolist())
        if int(moved.min()) >= 0 and key not in seen:
            seen.add(key)
            yield torch.repeat_interleave(torch.arange(classes, device=labels.device), moved)


def _solved(
    layer: DenseChain, observation: Observation, labels: Tensor, effort: tuple[int, int], random: torch.Generator
) -> tuple[Tensor, float]:
    """Return the features of all samples, and the residual of the equations."""
    gradient = augmented(one_gradient_of(observation), layer.first)
    precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps / 2
    if rank_of(gradient, precision, len(labels)) < len(labels):  # copies, or samples that the model has learned
        return gradient.new_zeros(0, gradient.shape[1] - 1), float("inf")
    right = torch.linalg.svd(gradient, full_matrices=False)[2][: len(labels)].T
    classes, share = len(gradient), observation.training.label_smoothing or 0.0
    targets = torch.nn.functional.one_hot(labels.long(), classes).to(gradient) * (1 - share) + share / classes
    equations = OutputEquations(gradient @ right, layer.augmented_weight().detach() @ right, right[-1], targets)
    points, residual = equations.solve(*effort, random)
    return (points @ right.T)[:, :-1], residual


def _outcome(residual: float, loss: float, interrupted: bool, determined: bool) -> Outcome:
    if residual >= PROVEN:
        words = f"no features could be proven, so no sample is returned (relative residual {residual:.2g})"
        return Outcome("finished", 0, words)
    kind: Kind = "interrupted" if interrupted else "converged" if determined else "finished"
    words = f"features: all samples solved for, with a relative residual of {residual:.2g}. The pictures have these"
    return Outcome(kind, 0, f"{words} features up to a relative squared error of {loss:.2g}")


def _output_layer(observation: Observation) -> DenseChain:
    """Return the output layer whose inputs are features, or raise an error if the attack does not apply."""
    training, samples = observation.training, observation.training.samples
    if training.loss != "cross_entropy" or observation.data.classes is None or training.label_smoothing is None:
        raise DoesNotFit("made for cross-entropy with a known smoothing of labels")
    layer = DenseChain(observation, on_samples=False, least=1)
    drawn = layer._random(DUMMIES, layer.layer(layer.first).out_features)
    with torch.no_grad():
        outputs = layer.outputs(drawn)
    if outputs.shape != drawn.shape or not torch.equal(outputs, drawn):
        raise DoesNotFit(f"the dense layer {layer.first!r} is not the output of the model")
    layer.check_features()
    if samples is None:
        raise DoesNotFit("the number of samples is unknown")
    if samples >= len(drawn[0]):
        raise DoesNotFit(f"an output layer of {len(drawn[0])} classes separates fewer than {samples} samples")
    return layer


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one gradient of a network with one dense layer at its end.

    Args:
        observation: The message of the client.
    """
    try:
        one_gradient_of(observation)
        _output_layer(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, "the gradient of the output layer determines the features of each sample")


def dense_output_features(
    *,
    steps: int = 600,
    lr: float = 0.2,
    restarts: int = 4,
    tv: float = 0.3,
    starts: int = 30,
    iterations: int = 200,
) -> OutputFeatures:
    """Solve for the features that enter the output layer, then search for each picture separately.

    The message is one gradient, or one local step with a known learning rate, of fewer samples than classes. Pictures
    are returned only if the features of all samples are proven.

    Args:
        steps: The number of Adam steps from each starting point.
        lr: The first learning rate of Adam. It falls to a hundredth in the last part of the steps.
        restarts: The largest number of starting points of the search for one picture.
        tv: The weight of total variation at the first step, from which the weight falls.
        starts: The number of starting points of the search for features.
        iterations: The largest number of Levenberg-Marquardt iterations of this search.
    """
    return OutputFeatures(starts, iterations, Schedule(steps, lr, restarts, tv))


SPECS = (
    AttackSpec(
        name="dense_output_features",
        factory=dense_output_features,
        summary="Features of an output layer (ours): the features of each sample exactly, then each picture by itself.",
        fits=fits,
        cost=Cost.SECONDS,
        rank=0,
        audit={},
        exact=True,
    ),
)
