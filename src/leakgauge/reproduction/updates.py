"""The updates that one client sends over several epochs (AGIC, tables III, V and VI).

A client has ``samples`` images. In each epoch, the images are divided into groups of ``per_update`` images, and the
client sends one update for each group. The groups differ between epochs, unless ``same_batches`` is set. The network
changes after every update. If the update is a gradient, the server applies it with the learning rate ``server_lr``. If
the update is trained weights, they replace the old weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core.observation import Observation
from leakgauge.core.seeding import derive, generator
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset
from leakgauge.federation.client import fedavg, fedsgd, truth_of
from leakgauge.reproduction.clients import clients_of
from leakgauge.reproduction.setting import Setting


@dataclass(frozen=True, eq=False)
class ClientUpdates:
    """The updates of one client.

    Args:
        epochs: The updates of each epoch, in the order in which the client sends them.
        rows: For each update of each epoch, the indices in ``truth`` of the samples in the update.
        truth: The client's samples.
    """

    epochs: list[list[Observation]]
    rows: list[list[Tensor]]
    truth: Truth


@lru_cache(maxsize=1)  # the methods of a row attack the same client one after another
def updates_of(setting: Setting, index: int, seed: int) -> ClientUpdates:
    """Return the updates that a client sends over its epochs.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row.
        index: The index of the client.
        seed: The seed of the run.
    """
    data = clients_of(setting, seed, index)[index]
    model = setting.network(data.spec, derive(seed, "network", index) % 2**31)
    draw = generator(seed, "epochs", index)
    order = torch.randperm(len(data), generator=draw)
    epochs: list[list[Observation]] = []
    rows: list[list[Tensor]] = []
    for epoch in range(setting.updates.get("epochs_seen", 2)):
        if epoch and not setting.updates.get("same_batches", False):
            order = torch.randperm(len(data), generator=draw)
        rows.append(list(order.split(setting.updates["per_update"])))
        epochs.append([])
        for place, part in enumerate(rows[-1]):
            update = _send(setting, model, data.share(part), derive(seed, "client", index, epoch, place))
            epochs[-1].append(update)
            rate = setting.updates["server_lr"] if setting.sends_gradient else 1.0
            _learn(model, update, rate)
    return ClientUpdates(epochs, rows, truth_of(data, ()))


def _send(setting: Setting, model: nn.Module, data: Dataset, seed: int) -> Observation:
    common: dict[str, Any] = {"seed": seed, "defences": setting.chain, **setting.exposure}
    if setting.sends_gradient:
        return fedsgd(model, data, **common)[0]
    return fedavg(model, data, **common, **setting.recipe)[0]


def _learn(model: nn.Module, update: Observation, rate: float) -> None:
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.sub_(update.difference()[name], alpha=rate)
