"""From a row's setting to its clients: data, network, local training, what the server sees."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn

from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.seeding import derive, generator
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset, by_group, load
from leakgauge.federation import defences
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.rounds import run_federation
from leakgauge.models import build

KEYS = {
    "data", "model", "model_options", "samples", "lr", "epochs", "batch_size", "momentum", "weight_decay", "grant",
    "hide", "threshold", "rounds", "mode", "defence", "sends", "normalise", "clients", "training_samples",
    "per_update", "same_batches", "seen", "server_lr", "distinct_labels",
}  # fmt: skip


def client_of(setting: dict[str, Any], index: int, seed: int) -> tuple[Observation, Truth]:
    """What the server sees of client ``index``, and the truth. Every client has its own network and order."""
    return _client_of(json.dumps(setting), index, seed)


@lru_cache(maxsize=1)  # the methods of a row follow each other on the same client
def _client_of(text: str, index: int, seed: int) -> tuple[Observation, Truth]:
    setting = json.loads(text)
    clients = clients_of(setting, seed, index)
    data = clients[index]
    model = build(setting["model"], seed=derive(seed, "network", index) % 2**31, **setting.get("model_options", {}))
    if setting.get("rounds"):
        _train(model, clients, setting, seed)
    if setting.get("sends", "weights") == "gradient":
        return fedsgd(
            model,
            data,
            seed=derive(seed, "client", index),
            client=f"{data.name}",
            round=setting.get("rounds", 0),
            defences=defences_of(setting),
            **{key: setting[key] for key in ("granted", "hidden", "knows_defence", "mode") if key in setting},
        )
    return fedavg(
        model,
        data,
        seed=derive(seed, "client", index),
        client=f"{data.name}",
        defences=defences_of(setting),
        **{
            key: setting[key]
            for key in (
                "lr",
                "epochs",
                "batch_size",
                "momentum",
                "weight_decay",
                "granted",
                "hidden",
                "knows_defence",
                "mode",
            )
            if key in setting
        },
    )


def clients_of(setting: dict[str, Any], seed: int, index: int = 0) -> list[Dataset]:
    """The clients of a row, ``index`` and those before it among them."""
    unknown = sorted(setting.keys() - KEYS)
    if unknown:
        raise CorruptFile(f"a row's setting has no {unknown[0]!r} (known: {', '.join(sorted(KEYS))})")
    clients = _clients(setting["data"], setting["samples"], seed, setting.get("normalise", True))
    if setting.get("distinct_labels"):  # as the label inference takes them to be that AGIC and AWA build on
        clients = [client for client in clients if len(client.targets.unique()) == len(client)]
    if index >= len(clients):
        raise InvalidInput(f"{setting['data']} has {len(clients)} clients of {setting['samples']} samples here")
    return clients


def defences_of(setting: dict[str, Any]) -> tuple[defences.Defence, ...]:
    """The clients' defences: ``defence`` is one, ``{ name = "gaussian_noise", sigma = 0.01 }``, or a list of them."""
    chosen = setting.get("defence", [])
    chain = [chosen] if isinstance(chosen, dict) else chosen
    if not isinstance(chain, list) or not all(isinstance(one, dict) and "name" in one for one in chain):
        raise CorruptFile(f"a row's defence is a table with a name, or a list of such, not {chosen!r}")
    return tuple(defences.build(**one) for one in chain)


def _train(model: nn.Module, clients: list[Dataset], setting: dict[str, Any], seed: int) -> None:
    """Train the network for some rounds with clients other than those that rows attack."""
    if "training_samples" in setting:
        clients = _clients(setting["data"], setting["training_samples"], seed, setting.get("normalise", True))
    trained = run_federation(
        model,
        clients[-min(20, len(clients) // 2) :],
        rounds=setting["rounds"],
        lr=setting["lr"],
        epochs=setting["epochs"],
        batch_size=setting["batch_size"],
        defences=defences_of(setting),
        seed=derive(seed, "federation"),
    )
    trained.load_into(model)


@cache
def _clients(name: str, samples: int, seed: int, normalise: bool = True) -> list[Dataset]:
    """The data's natural owners where it has any (writers), else random shares; in a random order.

    Without ``normalise`` the model takes pixels as they are.
    """
    dataset = load(name)
    if not normalise:
        dataset = replace(dataset, spec=replace(dataset.spec, mean=(0.0,), std=(1.0,)))
    draw = generator(seed, "clients", name)
    if dataset.groups is not None:
        clients = by_group(dataset, minimum=samples, limit=samples)
        return [clients[row] for row in torch.randperm(len(clients), generator=draw)]
    rows = torch.randperm(len(dataset), generator=draw).split(samples)
    return [dataset.share(part, f"{name} {number}") for number, part in enumerate(rows) if len(part) == samples]
