"""Changes to rehearsed messages by an attacker who does not know the client's defence, but sees its traces.

- If the message is pruned, rehearsed messages are pruned in the same way. As many of the largest entries of each tensor
  stay, or the entries that the message has.
- If the message holds noise or is quantised, noise of the same size is added to rehearsed messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from leakgauge.attacks.inversion.compression import Pruned, pruning_of
from leakgauge.attacks.inversion.noise_level import noise_in
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.seeding import generator

#: A function that changes a rehearsed message, given a seed.
Imitate = Callable[[Params, int], Params]


def imitation_of(observation: Observation) -> Imitate | None:
    """Return a function that gives rehearsed messages the traces of an unknown defence, or ``None`` without traces.

    Args:
        observation: The message of the client.
    """
    if observation.defences is not None:  # the rehearsed clients use the defences themselves
        return None
    pruned = pruning_of(observation)
    if pruned is not None:
        return partial(_pruned_like, pruned)
    share = noise_in(observation)
    if share <= 0:
        return None
    update = observation.difference()
    total = sum(float(value.double().square().sum()) for value in update.values())
    numbers = sum(value.numel() for value in update.values())
    return partial(_with_noise, math.sqrt(share * total / numbers))


def _pruned_like(pruned: Pruned, message: Params, seed: int) -> Params:
    return {
        name: value * pruned.sent[name] if math.isinf(pruned.limits[name]) else _largest(value, pruned.sent[name])
        for name, value in message.items()
    }


def _largest(value: Tensor, sent: Tensor) -> Tensor:
    """Return a tensor of which only the largest entries are left, as many as were sent."""
    left = int(sent.sum())
    flat = value.reshape(-1)
    kept = torch.zeros_like(flat)
    places = flat.abs().topk(left).indices
    kept[places] = flat[places]
    return kept.reshape(value.shape)


def _with_noise(sigma: float, message: Params, seed: int) -> Params:
    draw = generator(seed, "imitated noise")
    return {name: value + sigma * torch.randn(value.shape, generator=draw).to(value) for name, value in message.items()}
