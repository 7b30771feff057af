r"""The view of a server that gets only the sum of several clients' messages.

Let client :math:`k` have :math:`N_k` samples. The sum is computed as a mean of the messages, in which client :math:`k`
has the weight :math:`N_k`. If the clients send gradients, this mean is exactly the gradient of one batch with the
samples of all clients. If the clients send weights, this mean is, to first order, the message of an imaginary client
that holds the samples of all clients. Each batch of the imaginary client consists of one batch of every real client.
The observation of the sum has the training recipe of the imaginary client. Attacks treat the sum like any other
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining, Observation
from leakgauge.core.params import Params, weighted_mean
from leakgauge.core.truth import Truth


def aggregate(parts: Sequence[tuple[Observation, Truth]]) -> tuple[Observation, Truth]:
    """Combine the messages of several clients into one message, and their samples into one set of samples.

    Args:
        parts: The message and the samples of each client.
    """
    if not parts:
        raise InvalidInput("there are no messages to aggregate")
    observations, truths = [observation for observation, _ in parts], [truth for _, truth in parts]
    _check_same_round(observations)
    samples = [len(truth) for truth in truths]
    shares = [float(count) for count in samples]
    observation = replace(
        observations[0],
        training=_recipe_of_sum([message.training for message in observations], sum(samples)),
        gradient=_mean([message.gradient for message in observations], shares),
        returned=_mean([message.returned for message in observations], shares),
        returned_buffers=_mean([message.returned_buffers for message in observations], shares),
        labels=_joined([message.labels for message in observations]),
        label_counts=_total([message.label_counts for message in observations]),
        label_batches=None,
        client=f"sum of {len(parts)} clients",
    )
    truth = replace(
        truths[0],
        inputs=torch.cat([part.inputs for part in truths]),
        targets=torch.cat([part.targets for part in truths]),
        order=(),
    )
    return observation, truth


def _check_same_round(observations: Sequence[Observation]) -> None:
    """Raise an error if the messages cannot be of the same round.

    Messages of one round have the same sent weights, the same form (gradient or weights) and the same description of
    the data.
    """
    first = observations[0]
    for message in observations[1:]:
        same_weights = all(torch.equal(value, first.sent[name]) for name, value in message.sent.items())
        if message.kind != first.kind or message.data != first.data or not same_weights:
            raise InvalidInput(f"the messages of {first.client} and {message.client} are not of the same round")


def _recipe_of_sum(recipes: Sequence[LocalTraining], samples: int) -> LocalTraining:
    """Return the training recipe of an imaginary client that holds the samples of all clients.

    If a setting is unknown for any real client, this setting is unknown in the returned recipe too.
    """
    sizes = [recipe.batch_size for recipe in recipes]
    known = [size for size in sizes if size is not None]
    return replace(
        recipes[0],
        samples=None if recipes[0].samples is None else samples,
        batch_size=sum(known) if len(known) == len(sizes) else None,
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
