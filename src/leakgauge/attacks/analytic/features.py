r"""The attack that solves for the features that enter two dense layers, then searches separately for each picture.

If a convolutional network ends in two dense layers, the inputs of these layers are features :math:`f(x_i)` and not
samples. The module :mod:`.spans` solves for these features exactly. Then the attack searches for each picture
separately:

.. math:: \arg\min_x \; \lVert f(x) - f_i \rVert^2 / \lVert f_i \rVert^2 .

Here :math:`f` is the network up to the two layers, and :math:`f_i` are the solved features of sample :math:`i`. The
search needs no labels and no other samples of the batch. A search that matches the gradient of the whole batch has to
find out which part of the gradient belongs to which sample, and often ends with parts of one sample in another. This
happens most to samples with the same label. Here each picture has an equation of its own.

Adam starts from random pixels from N(0, 1). During the first part of the steps, the weight of total variation falls. A
large weight at the start leads past local minima, of which networks with ReLU have many. If fewer features than pixels
are not zero, a small weight remains, because many pictures then have the same features, and the smoothest is the best
guess. Otherwise the features determine the picture, and no prior remains. Pixels are clamped to their range in each
step. A high loss shows that a search has ended in a local minimum. The search for this picture then
starts again. We know of no earlier description of this attack.

The attacker can prove the features, but not the pictures, because pooling and ReLU can map several pictures to nearly
the same features. The loss shows how well the features of a picture agree with the proven features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

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
from leakgauge.attacks.analytic.picture_search import STUCK, PictureSearch, Schedule
from leakgauge.attacks.analytic.separability import check_size, separable_samples, visible_samples
from leakgauge.attacks.analytic.two_layers import TwoLayers
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import not_negative, positive, whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator


@dataclass(frozen=True)
class DenseTailFeatures(Attack):
    """The attack that solves for features, then searches for pictures that have these features.

    Args:
        search: The settings of the search for features.
        steps: The number of Adam steps from each starting point.
        lr: The first learning rate of Adam.
        restarts: The largest number of starting points of the search for one picture.
        tv: The weight of total variation at the first step.
    """

    uses_defences: ClassVar[bool] = False

    search: SearchSettings
    steps: int = 600
    lr: float = 0.2
    restarts: int = 4
    tv: float = 0.3

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)
        whole_number("restarts", self.restarts)
        not_negative("the weight of total variation", self.tv)
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
        descent = PictureSearch(extract, features.to(dtype), observation.data, random)
        schedule = Schedule(0 if interrupted else self.steps, self.lr, self.restarts, self.tv)
        interrupted = descent.run(schedule, report) or interrupted
        labels = labels.to(dtype) if labels.is_floating_point() else labels
        loss = float(descent.losses.mean())
        determined = descent.determined and bool((descent.losses <= STUCK).all())
        return Reconstruction(descent.samples, labels, _outcome(peeling, interrupted, loss, determined), loss=loss)


def extractor(
    observation: Observation, path: str, dtype: torch.dtype, without: Callable[[nn.Module], bool] | None = None
) -> Callable[[Tensor], Tensor]:
    """Return the function that maps samples to the inputs of a dense layer.

    Args:
        observation: The message of the client.
        path: The path of the layer in the model.
        dtype: The precision of the features.
        without: The rule that names the layers which run in evaluation mode, such as dropout. By default, none.
    """
    model = copy_of_model(observation, dtype)
    for module in model.modules():
        if without is not None and without(module):
            module.eval()
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
        determined: Whether each picture has the proven features, and at least as many of them as pixels are not zero.
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
    steps: int = 600,
    lr: float = 0.2,
    restarts: int = 4,
    tv: float = 0.3,
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
        lr: The first learning rate of Adam. It falls to a hundredth in the last part of the steps.
        restarts: The largest number of starting points of the search for one picture. A search starts again if the
            features of its picture do not agree with the proven features.
        tv: The weight of total variation at the first step, from which the weight falls.
        starts: The number of starting points of each search for features.
        iterations: The largest number of Levenberg-Marquardt iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
        tolerance: The largest relative error with which the features of a sample still count as proven.
    """
    return DenseTailFeatures(SearchSettings(starts, iterations, attempts, tolerance), steps, lr, restarts, tv)


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
