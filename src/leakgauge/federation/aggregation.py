r"""What a server sees that sees only the sum of several clients' messages.

With :math:`N_k` samples at client :math:`k`, the mean of the messages weighted by samples is for gradients exactly the
gradient of all clients' samples as one batch. For weights it is, to first order, what one client would send that has
all their samples and whose batches are theirs together: the recipe of the sum says so, and attacks work on it as on any
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, weighted_mean
from leakgauge.core.truth import Truth


def aggregate(parts: Sequence[tuple[Observation, Truth]]) -> tuple[Observation, Truth]:
    """The messages of several clients of one round as one, and all their samples as its truth."""
    if not parts:
        raise InvalidInput("there are no messages to aggregate")
    observations, truths = [one for one, _ in parts], [one for _, one in parts]
    first = observations[0]
    for one in observations[1:]:
        same = all(torch.equal(value, first.sent[name]) for name, value in one.sent.items())
        if one.kind != first.kind or one.data != first.data or not same:
            raise InvalidInput(f"the messages of {first.client} and {one.client} are not of the same round")
    samples = [len(truth) for truth in truths]
    shares = [float(number) for number in samples]
    sizes = [one.training.batch_size for one in observations]
    training = replace(
        first.training,
        samples=None if first.training.samples is None else sum(samples),
        batch_size=None if None in sizes else sum(size for size in sizes if size is not None),
    )
    observation = replace(
        first,
        training=training,
        gradient=_mean([one.gradient for one in observations], shares),
        returned=_mean([one.returned for one in observations], shares),
        returned_buffers=_mean([one.returned_buffers for one in observations], shares),
        labels=_joined([one.labels for one in observations]),
        label_counts=_total([one.label_counts for one in observations]),
        label_batches=None,
        client=f"sum of {len(parts)} clients",
    )
    return observation, replace(
        truths[0],
        inputs=torch.cat([truth.inputs for truth in truths]),
        targets=torch.cat([truth.targets for truth in truths]),
        order=(),
    )


def _mean(trees: list[Params | None], shares: list[float]) -> Params | None:
    known = [tree for tree in trees if tree is not None]
    return weighted_mean(known, shares) if len(known) == len(trees) else None


def _joined(values: list[Tensor | None]) -> Tensor | None:
    known = [value for value in values if value is not None]
    return torch.cat(known) if len(known) == len(values) else None


def _total(values: list[Tensor | None]) -> Tensor | None:
    known = [value for value in values if value is not None]
    return torch.stack(known).sum(0) if len(known) == len(values) else None
