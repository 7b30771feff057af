r"""The updates of two consecutive dense layers after several local steps, and what a server knows from them.

The update of the first layer is a sum of terms :math:`\delta_i [x_i, 1]^T`, one for each sample and each step. So every
:math:`[x_i, 1]` lies in its row space, as after one step. The update of the second layer is such a sum of the second
layer's inputs. These change while the client trains, because the first layer's weights change. The server knows these
weights before and after the training, and takes points of the straight line between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit, augmented, takes_one_step
from leakgauge.attacks.analytic.layer_span import LayerSpan, rank_of
from leakgauge.attacks.analytic.two_layers import TwoLayers
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly

#: The largest ratio of the first singular value after those of the samples and the last one of the samples.
GAP = 0.1


@dataclass(frozen=True, eq=False)
class LocalLayers:
    """The updates of two dense layers after several local steps.

    Args:
        chain: The two dense layers, with the weights that the server sent.
        samples: The number of samples that are searched for.
        changes: The updates of both layers without the part of weight decay, each with its bias as the last column.
        first: The update of the first layer in the basis of its row space.
        second: The update of the second layer in the basis of its row space.
    """

    chain: TwoLayers
    samples: int
    changes: tuple[Tensor, Tensor]
    first: LayerSpan
    second: LayerSpan

    @classmethod
    def of(cls, observation: Observation) -> LocalLayers:
        """Return the updates of two dense layers, or raise :class:`.DoesNotFit` if they do not show the samples.

        Args:
            observation: The message of the client.
        """
        if takes_one_step(observation):
            raise DoesNotFit("made for several local steps, and one gradient is solved exactly by two_spans")
        if not mixes_linearly(observation) or not _knows_decay(observation.training):
            raise DoesNotFit("made for SGD whose weight decay is known, so that its update spans the samples")
        chain = TwoLayers(observation)
        decayed = 1 - observation.training.kept_share
        difference = {
            name: value.double() - decayed * observation.sent[name].double()
            for name, value in observation.difference().items()
        }
        changes = (augmented(difference, chain.first), augmented(difference, chain.second))
        precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps
        rank = _samples_of(changes[0], precision, observation.training.samples)
        samples = observation.training.samples or rank
        if not rank or rank == min(changes[0].shape):
            raise DoesNotFit(f"the update of the dense layer {chain.first!r} does not show a span of {samples} samples")
        if min(changes[1].shape) <= samples or not bool(changes[1].any()):
            raise DoesNotFit(f"the update of the dense layer {chain.second!r} does not separate {samples} samples")
        return cls(chain, samples, changes, LayerSpan.of(changes[0], rank), LayerSpan.of(changes[1], samples))

    def layer_at(self, share: float) -> Tensor:
        """Return the map from coordinates to the first layer's outputs, at a point between the two weights.

        Args:
            share: The share of the update that is added to the sent weights.
        """
        return (self.chain.augmented_weight() - share * self.changes[0]) @ self.first.right

    def labels(self, inputs: Tensor, classes: int | None) -> Tensor | None:
        """Return the label of each sample, or ``None`` for a regression.

        The update of the first layer is a sum of each sample's gradients for its label, with weights that are not
        negative. The label of a sample is the one with the largest weight.

        Args:
            inputs: The augmented inputs of the first layer, one row for each sample.
            classes: The number of classes, or ``None`` for a regression.
        """
        if classes is None or not len(inputs):
            return None
        from scipy.optimize import nnls  # takes a second to import

        chain, target = self.chain, self.changes[0]
        first = inputs @ chain.augmented_weight().T
        rows, device = len(inputs), inputs.device
        gradients = torch.stack(
            [chain.gradients(first, torch.full((rows,), label, device=device))[0] for label in range(classes)]
        )
        # In the basis of the row space, the equations are as many as the layer's outputs times the rank.
        coordinates = inputs @ self.first.right
        parts = (gradients[:, :, :, None] * coordinates[None, :, None, :]).flatten(2).flatten(0, 1)
        sizes = parts.norm(dim=1).clamp_min(1e-300)
        equations = (parts / sizes[:, None]).T.cpu().numpy()
        weights, _ = nnls(equations, (target @ self.first.right).flatten().cpu().numpy())
        found = torch.from_numpy(weights).to(sizes) / sizes
        labels: Tensor = found.reshape(classes, -1).argmax(0)
        return labels


def _samples_of(change: Tensor, precision: float, samples: int | None) -> int:
    """Return the rank of the first layer's update, and zero if it does not show a span of the known samples.

    The rounding of returned weights may add some directions to those of the samples, which are far smaller.
    """
    rank = rank_of(change, precision)
    if samples is None or rank <= samples:
        return rank
    values = torch.linalg.svdvals(change)
    return samples if bool(values[samples] < GAP * values[samples - 1]) else 0


def _knows_decay(training: LocalTraining) -> bool:
    """Return whether the part of weight decay in the update is known. It adds the sent weights to the update."""
    needed = (training.lr, training.epochs, training.batch_size, training.samples, training.momentum)
    return training.weight_decay is not None and (not training.weight_decay or None not in needed)
