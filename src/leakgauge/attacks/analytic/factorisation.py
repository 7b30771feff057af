r"""Dense factorisation, an attack that solves exactly for whole batches from the gradients of two dense layers.

The gradient of a dense layer with a bias is :math:`[\partial W \mid \partial b] = \frac1N \sum_i \delta_i [x_i, 1]^T`.
It is a product of two unknown matrices. One matrix holds the inputs, and the other matrix holds the gradients
:math:`\delta_i` of the loss with respect to the layer's outputs. The row space and the column space of the layer's
gradient limit both matrices, and the known network connects them.

1. Every :math:`[x_i, 1]` lies in the row space of the first dense layer's gradient, and every :math:`\delta_i` in its
   column space. The dimension of both is the number of distinct samples.
2. :math:`\delta_i = \phi'(W_1 x_i + b_1) \odot W_2^T \delta^{(2)}_i`, and :math:`\delta^{(2)}_i` lies in the column
   space of the next dense layer's gradient. For an output layer, this space is known in advance.
3. If the activation :math:`\phi` has two slopes, as ReLU and leaky ReLU have, every neuron fulfils one of two linear
   equations for :math:`\delta_i` and :math:`\delta^{(2)}_i` (:mod:`.mixture`). The gradients :math:`\delta_i` of all
   samples determine the inputs.
4. For all other activations, the equations are solved for the input and for :math:`\delta^{(2)}_i` by the
   Levenberg-Marquardt method (:mod:`.smooth_search`).
5. The attacker proves each solution with the known network, which also gives the label (:mod:`.proof`). The gradients
   of proven samples are subtracted, and the search is repeated for the other samples.

SPEAR (Dimitrov et al., NeurIPS 2024) and SPEAR++ (2025) factorise the same gradient for ReLU layers. They use the zeros
of :math:`\delta_i` only. This attack also uses the entries that are not zero, so it needs no sparsity. It works for
trained networks, in which most neurons may be active. Unlike :mod:`.spans`, it applies to networks with one hidden
layer and more samples than classes. We know of no earlier description of steps 2 to 4.

The attack returns fewer samples, or none, in these cases:

- The number of samples is near half of the width of the first layer, or near a quarter for trained ReLU networks.
- The model has learned some samples so well that their gradients are only rounding errors.
- The update is noisy.

If the first layer has no bias, its gradient gives each sample up to a factor. The factor follows from the outputs of
the network, if there are at least three classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakgauge.attacks.analytic.dense import DoesNotFit, one_gradient_of
from leakgauge.attacks.analytic.peeling import (
    Peeling,
    SearchSettings,
    chain_of,
    factor_finders,
)
from leakgauge.attacks.analytic.separability import check_size, visible_samples
from leakgauge.attacks.analytic.two_layers import TwoLayers
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator


@dataclass(frozen=True)
class DenseFactorisation(Attack):
    """The attack that factorises the gradient of a dense layer.

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
        chain = _chain(observation)
        finders = factor_finders(chain, self.search, generator(seed, "dense factorisation"))
        most = chain.layer(chain.first).out_features // 2
        return Peeling(self.search, chain, observation, finders, most).reconstruction(report)


def _chain(observation: Observation) -> TwoLayers:
    """Return the two dense layers, or raise an error if the attack does not apply."""
    chain = chain_of(observation, needs_bias=False)
    chain.check_only_path()
    chain.check_scale()
    return chain


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one gradient, and samples that enter two consecutive dense layers.

    Args:
        observation: The message of the client.
    """
    try:
        one_gradient_of(observation)
        chain = _chain(observation)
        check_size(chain, observation.training.samples)
        unseen = visible_samples(chain, observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(
        True, f"samples enter a dense layer, whose gradient is factorised into samples and their gradients{unseen}"
    )


def dense_factorisation(
    *, starts: int = 48, iterations: int = 60, attempts: int = 6, tolerance: float = 0.02
) -> DenseFactorisation:
    """Solve for the samples behind one gradient, by a factorisation of the gradient of a dense layer.

    The samples must enter the first of two consecutive dense layers, possibly after a reshape, with an elementwise
    activation between the layers. The second layer may be the output layer, also with more samples than classes. The
    message is one gradient, or one local step with a known learning rate. The number of samples may be unknown. A
    sample and its label are returned only if the attacker can prove that the sample is correct.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
        tolerance: The largest relative error with which a sample still counts as proven.
    """
    return DenseFactorisation(SearchSettings(starts, iterations, attempts, tolerance))


SPECS = (
    AttackSpec(
        name="dense_factorisation",
        factory=dense_factorisation,
        summary="Dense factorisation (ours, related to SPEAR, 2024): whole batches, also with one hidden layer.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=30,
        audit={},
        exact=True,
    ),
)
