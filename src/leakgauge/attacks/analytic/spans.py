r"""Two spans, an attack that solves exactly for whole batches from two consecutive dense layers.

The gradient of a dense layer with a bias is :math:`[\partial W \mid \partial b] = \frac1N \sum_i \delta_i [x_i, 1]^T`.

1. Every :math:`[x_i, 1]` lies in the row space :math:`S_1` of the first dense layer's gradient. The dimension of
   this space is the number of distinct samples.
2. Every :math:`[\phi(W_1 x_i + b_1), 1]` lies in the row space :math:`S_2` of the next dense layer's gradient, where
   :math:`\phi` is the activation.
3. A point of :math:`S_1` has as many coordinates as the client has samples. The condition that its activation lies in
   :math:`S_2` gives as many equations as the first layer has neurons. The Levenberg-Marquardt method solves these
   equations from many starting points, for any activation, without labels or priors.
   The rows of a table are linearly dependent more often. Their one-hot columns give further equations
   (:mod:`.one_hot`).
4. The attacker proves each solution with the known network, which also gives the label (:mod:`.proof`).
5. The gradients of proven samples are subtracted, and the search is repeated for the other samples.

We know of no earlier description of this attack. SPEAR (Dimitrov et al., NeurIPS 2024) and SPEAR++ also start from the
low rank of the first layer's gradient. They then use the zeros that ReLU makes in :math:`\delta`. This attack uses a
second layer instead.

The attack returns fewer samples, or none, in these cases:

- The number of samples is near the width of the first layer, or near a third of this width for ReLU.
- The number of samples is larger than the rank of the next layer's gradient. For an output layer, this rank is at most
  the number of classes minus 1.
- The model has learned some samples so well that their gradients are only rounding errors.
- The update is noisy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakgauge.attacks.analytic.dense import DoesNotFit, one_gradient_of
from leakgauge.attacks.analytic.peeling import (
    Peeling,
    SearchSettings,
    chain_of,
    span_finders,
)
from leakgauge.attacks.analytic.separability import check_size, separable_samples, visible_samples
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator


@dataclass(frozen=True)
class TwoSpans(Attack):
    """The attack that solves for samples in two spans, which are the row spaces of the gradients of two dense layers.

    Args:
        search: The settings of the search.
    """

    uses_defences: ClassVar[bool] = False

    search: SearchSettings

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return the samples that the attack could prove.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
            report: The progress function, which gets the number of proven samples.
        """
        chain = chain_of(observation)
        finders = span_finders(chain, self.search, generator(seed, "two spans"))
        return Peeling(self.search, chain, observation, finders, separable_samples(chain)).reconstruction(report)


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one gradient, and samples that enter two consecutive dense layers.

    Args:
        observation: The message of the client.
    """
    try:
        one_gradient_of(observation)
        chain = chain_of(observation)
        check_size(chain, observation.training.samples, separable_samples(chain))
        unseen = visible_samples(chain, observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, f"samples enter two dense layers in a row, whose gradients determine them{unseen}")


def two_spans(*, starts: int = 48, iterations: int = 60, attempts: int = 6, tolerance: float = 0.02) -> TwoSpans:
    """Solve for the samples behind one gradient, in the row spaces of the gradients of two consecutive dense layers.

    The samples must enter the first of these layers, possibly after a reshape. Both layers must have biases, with an
    elementwise activation between the layers. The message is one gradient, or one local step with a known learning
    rate. The number of samples may be unknown. A sample and its label are returned only if the attacker can prove that
    the sample is correct.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of Levenberg-Marquardt iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
        tolerance: The largest relative error with which a sample still counts as proven.
    """
    return TwoSpans(SearchSettings(starts, iterations, attempts, tolerance))


SPECS = (
    AttackSpec(
        name="two_spans",
        factory=two_spans,
        summary="Two spans (ours): whole batches solved exactly from two consecutive dense layers, any activation.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=20,
        audit={},
        exact=True,
    ),
)
