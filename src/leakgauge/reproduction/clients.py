"""The clients of a benchmark row, each of which sends one message that is attacked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.seeding import derive, generator
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset, by_group
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.rounds import run_federation
from leakgauge.reproduction.setting import Setting


@lru_cache(maxsize=1)  # the methods of a row attack the same client one after another
def client_of(setting: Setting, index: int, seed: int) -> tuple[Observation, Truth]:
    """Return the server's observation of one client, and the client's true samples and labels.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row.
        index: The index of the client. Every client has its own network and its own order of samples.
        seed: The seed of the run.
    """
    clients = clients_of(setting, seed, index)
    data = clients[index]
    model = setting.network(data.spec, derive(seed, "network", index) % 2**31)
    rounds = setting.model.get("trained_rounds", 0)
    if rounds:
        _train(model, clients, setting, seed)
    common: dict[str, Any] = {
        "seed": derive(seed, "client", index), "client": data.name, "defences": setting.chain, **setting.exposure
    }  # fmt: skip
    if setting.sends_gradient:
        return fedsgd(model, data, round=rounds, **common)
    return fedavg(model, data, **common, **setting.recipe)


def clients_of(setting: Setting, seed: int, index: int = 0) -> list[Dataset]:
    """Return the data of all clients of a benchmark row.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row.
        seed: The seed of the run.
        index: The index of a client. An error is raised if there is no such client.
    """
    samples = setting.training["samples"]
    clients = _shares(setting, samples, seed)
    if setting.data.get("distinct_labels"):  # AGIC and AWA assume this when they infer labels
        clients = [client for client in clients if len(client.targets.unique()) == len(client)]
    if index >= len(clients):
        raise InvalidInput(
            f"{setting.data_name} has {len(clients)} clients of {samples} samples here. Attack fewer clients."
        )
    return clients


def _train(model: nn.Module, clients: list[Dataset], setting: Setting, seed: int) -> None:
    """Train the network for ``trained_rounds`` rounds, with clients that are not attacked themselves."""
    if "trained_samples" in setting.model:
        clients = _shares(setting, setting.model["trained_samples"], seed)
    trained = run_federation(
        model,
        clients[-min(20, len(clients) // 2) :],
        rounds=setting.model["trained_rounds"],
        lr=setting.training["lr"],
        epochs=setting.training["epochs"],
        batch_size=setting.training["batch_size"],
        defences=setting.chain,
        seed=derive(seed, "federation"),
    )
    trained.load_into(model)


def _shares(setting: Setting, samples: int, seed: int) -> list[Dataset]:
    data = {key: value for key, value in setting.data.items() if key in (setting.source, "options", "normalise")}
    return _cached_shares(Setting(data=data), samples, seed)


@cache
def _cached_shares(setting: Setting, samples: int, seed: int) -> list[Dataset]:
    """Divide a dataset into clients, and return the clients in a random order.

    If the data has natural owners, such as writers, each owner with enough samples is a client. Otherwise,
    each client gets ``samples`` random samples.
    """
    dataset = setting.load()
    if not setting.data.get("normalise", True):
        dataset = replace(dataset, spec=replace(dataset.spec, mean=(0.0,), std=(1.0,)))
    name = setting.data_name
    draw = generator(seed, "clients", name)
    if dataset.groups is not None:
        clients = by_group(dataset, minimum=samples, limit=samples)
        return [clients[row] for row in torch.randperm(len(clients), generator=draw)]
    rows = torch.randperm(len(dataset), generator=draw).split(samples)
    return [dataset.share(part, f"{name} {number}") for number, part in enumerate(rows) if len(part) == samples]
