"""Rows about the updates of several epochs (AGIC, tables III, V and VI).

A client with ``samples`` images sends an update for every ``per_update`` of them, epoch after epoch, in a new order
each unless ``same_batches``. The network learns from its updates: a gradient with ``server_lr``, weights as they are.

============  =====================================================================================================
``epochs``    reconstruct from the updates of the epochs that a method names; quality as in any reconstruction
``matching``  reconstruct each update by itself and pair the samples of two epochs; ``matching_rate`` is the share
              paired rightly, by chance what labels alone give (one right pair a label, without them one in all)
============  =====================================================================================================
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from leakgauge import attacks
from leakgauge.attacks.inversion.joint import JointInversion, Update
from leakgauge.core.errors import CorruptFile
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator
from leakgauge.core.truth import Truth
from leakgauge.evaluation import pair, score
from leakgauge.federation.client import fedavg, fedsgd, truth_of
from leakgauge.models import build
from leakgauge.reproduction.rows import Method
from leakgauge.reproduction.setting import clients_of, defences_of

LOCAL = ("lr", "epochs", "batch_size", "momentum", "weight_decay")


@dataclass(frozen=True, eq=False)
class Client:
    """One client's updates, epoch by epoch, which of its samples are in each, and the truth."""

    epochs: list[list[Observation]]
    rows: list[list[Tensor]]
    truth: Truth


def reconstruct_epochs(
    setting: dict[str, Any], method: Method, index: int, steps: int | None, seed: int, report: Report
) -> dict[str, Any]:
    """Reconstruct one client's samples from the epochs that the method names, and score them."""
    client = updates_of(json.dumps(setting), index, seed)
    options = dict(method.options)
    seen = [client.epochs[number - 1] for number in options.pop("epochs")]
    if steps is not None:
        options |= {"steps": steps} | ({"first_steps": steps} if len(seen) > 1 else {})
    began = time.perf_counter()
    if len(seen) > 1:
        result: attacks.Reconstruction = attacks.agic_epochs(**options)(seen, seed=seed + index, progress=report)
    else:
        every = attacks.build(method.attack, **options).each(seen[0], seed=seed + index, progress=report)
        labels = torch.cat([one.labels for one in every if one.labels is not None])
        result = replace(every[0], samples=torch.cat([one.samples for one in every]), labels=labels)
    scored = score(result, client.truth, threshold=setting["threshold"])
    return {
        "values": {name: (scored[name].value, scored[name].chance) for name in scored},
        "steps": options.get("steps", 0),
        "seconds": time.perf_counter() - began,
    }


def match_samples(
    setting: dict[str, Any], method: Method, index: int, steps: int | None, seed: int, report: Report
) -> dict[str, Any]:
    """Pair the samples of one client's epochs, and count those paired rightly."""
    options = dict(method.options) | ({} if steps is None else {"first_steps": steps})
    joint = attacks.agic_epochs(**options)
    client = updates_of(json.dumps(setting), index, seed)
    alone, seconds = _alone(json.dumps(setting), joint.first, index, seed, report)
    places, _ = joint.match(alone)
    whose = [_identities(client, alone, epoch) for epoch in range(len(client.epochs))]
    right = whose[1][places[1]] == whose[0][places[0]]
    known = 1 if joint.label_filter == "none" else len(set(client.truth.targets.tolist()))
    return {
        "values": {"matching_rate": (right.double().mean().item(), known / len(client.truth))},
        "steps": joint.first.stop.max_steps or 0,
        "seconds": seconds,
    }


@lru_cache(maxsize=1)  # the methods of a row follow each other on the same client
def updates_of(text: str, index: int, seed: int) -> Client:
    """What a client sends over its epochs, and the truth."""
    setting = json.loads(text)
    data = clients_of(setting, seed, index)[index]
    model = build(setting["model"], seed=derive(seed, "network", index) % 2**31, **setting.get("model_options", {}))
    draw = generator(seed, "epochs", index)
    order = torch.randperm(len(data), generator=draw)
    epochs: list[list[Observation]] = []
    rows: list[list[Tensor]] = []
    for number in range(setting.get("seen", 2)):
        if number and not setting.get("same_batches", False):
            order = torch.randperm(len(data), generator=draw)
        rows.append(list(order.split(setting["per_update"])))
        epochs.append([])
        for place, part in enumerate(rows[-1]):
            common: dict[str, Any] = {
                key: setting[key] for key in ("granted", "hidden", "knows_defence", "mode") if key in setting
            }
            common |= {"seed": derive(seed, "client", index, number, place), "defences": defences_of(setting)}
            if setting.get("sends", "weights") == "gradient":
                seen, _ = fedsgd(model, data.share(part), **common)
                rate = setting["server_lr"]
            else:
                seen, _ = fedavg(model, data.share(part), **common, **{k: setting[k] for k in LOCAL if k in setting})
                rate = 1.0
            epochs[-1].append(seen)
            with torch.no_grad():
                for name, value in model.named_parameters():
                    value.sub_(seen.difference()[name], alpha=rate)
    return Client(epochs, rows, truth_of(data, ()))


_KEPT: dict[str, tuple[list[Update], float]] = {}


def _alone(text: str, first: attacks.Inversion, index: int, seed: int, report: Report) -> tuple[list[Update], float]:
    """Each update reconstructed by itself, once for all ways of pairing; half of it is no figure."""
    key = f"{text} {first} {index} {seed}"
    if key not in _KEPT:
        began = time.perf_counter()
        client = updates_of(text, index, seed)
        updates, outcome = JointInversion(first, first).alone(client.epochs, seed=seed + index, progress=report)
        if outcome.kind == "interrupted":
            raise KeyboardInterrupt
        _KEPT.clear()
        _KEPT[key] = updates, time.perf_counter() - began
    return _KEPT[key]


def _identities(client: Client, updates: list[Update], epoch: int) -> Tensor:
    """Which sample each reconstruction of an epoch is of: within its update, the one it is paired with."""
    own = [one for one in updates if one.epoch == epoch]
    if len(own) != len(client.rows[epoch]):
        raise CorruptFile("a row about epochs needs as many reconstructions as updates")
    found = []
    for update, rows in zip(own, client.rows[epoch], strict=True):
        paired = pair(update.samples, client.truth.inputs[rows]).rows
        whose = torch.empty(len(rows), dtype=torch.long)
        whose[paired] = rows
        found.append(whose)
    return torch.cat(found)


KINDS = {"epochs": reconstruct_epochs, "matching": match_samples}
