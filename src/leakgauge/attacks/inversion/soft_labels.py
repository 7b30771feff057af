r"""Labels that are optimised together with the samples (DLG, Zhu, Liu, Han, NeurIPS 2019, algorithm 1).

The variables are logits :math:`z`, and a sample's label is the distribution :math:`\mathrm{softmax}(z)`. The matching
loss can be differentiated with respect to :math:`z`:

.. math:: \arg\min_{x,\, z} \; \lVert \nabla_\theta\, \ell(f(x;\theta), \mathrm{softmax}(z)) - g \rVert^2

Here :math:`g` is the observed gradient, and :math:`f` is the model with weights :math:`\theta`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.inversion.labels import granted_labels
from leakgauge.attacks.inversion.last_layer import outputs_for_labels
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import DataSpec, Observation


@dataclass(frozen=True)
class SoftLabels:
    """A source of labels. It returns the labels that are given, or logits from N(0, 1) that the attack optimises."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the given labels, (samples,), or the initial logits, (samples, classes).

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        labels = granted_labels(observation)
        if labels is not None:
            return labels
        classes = observation.data.classes
        if classes is None or outputs_for_labels(observation) is None:
            raise MissingKnowledge(
                "labels can only be optimised for classification with cross-entropy. "
                'Grant them ([attacker] granted = ["labels"] in TOML, observation.knowing(labels=...) in Python)'
            )
        like = next(iter(observation.sent.values()))
        return torch.randn(int(observation.training.need("samples")), classes, generator=generator).to(like)


def is_soft(targets: Tensor, data: DataSpec) -> bool:
    """Return whether targets are logits that the attack optimises, instead of labels or regression targets.

    Args:
        targets: The labels, regression targets or logits.
        data: The kind of data.
    """
    return data.classes is not None and targets.is_floating_point()
