"""Federations that are watched for many rounds: a row's setting to clients, their messages and their own models."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from leakgauge.attacks.local_model import LocalModel
from leakgauge.core.errors import CorruptFile
from leakgauge.core.observation import Observation
from leakgauge.core.params import buffers_of, parameters_of
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator
from leakgauge.data import Dataset, adult_phd, by_group, iid, load, orl_lmra
from leakgauge.federation.local_only import train_alone
from leakgauge.federation.rounds import run_federation
from leakgauge.models import build
from leakgauge.reproduction.setting import defences_of

KEYS = {
    "data", "data_options", "split", "partition", "partition_options", "clients", "samples", "hidden", "batch_norm",
    "lr", "epochs", "batch_size", "rounds", "every", "defence", "records", "references", "measures", "standardise",
    "duplicates",
}  # fmt: skip
PARTITIONS = {"adult_phd": adult_phd, "by_group": by_group, "orl_lmra": orl_lmra, "iid": iid}
#: After so many epochs a client's own model is taken as it is; it says whether it has converged.
REFERENCE_EPOCHS = 2000
TRAINING = ("lr", "epochs", "batch_size", "rounds", "every", "defence")


@dataclass(frozen=True, eq=False)
class Watched:
    """A federation of which the server kept the messages of every client.

    Its ``model`` still has the weights it began with.
    """

    setting: dict[str, Any]
    model: nn.Module = field(repr=False)
    clients: list[Dataset] = field(repr=False)
    observations: list[list[Observation]] = field(repr=False)
    seconds: float
    seed: int
    references: dict[int, LocalModel] = field(default_factory=dict, repr=False)

    def reference(self, index: int) -> LocalModel:
        """The model that a client trains by itself, to convergence: the same steps of Adam in every row."""
        if index not in self.references:
            client = self.clients[index]
            alone = train_alone(
                self.model, client, lr=1e-3, epochs=REFERENCE_EPOCHS, batch_size=self.setting.get("batch_size"),
                adam=True, fitted=0.05, seed=derive(self.seed, "alone", index),
            )  # fmt: skip
            ended = "converged" if alone.converged else "still falling"
            words = f"trained alone for {alone.epochs} epochs; loss {alone.losses[-1]:.4g}, {ended}"
            loss = self.observations[index][0].training.loss
            self.references[index] = LocalModel(self.model, alone.weights, alone.buffers, client.spec, loss, words)
        return self.references[index]

    def untrained(self, index: int) -> LocalModel:
        """The model that the federation began with: what one knows without any message."""
        first = self.observations[index][0]
        return LocalModel(
            self.model, parameters_of(self.model), buffers_of(self.model), first.data, first.training.loss, "untrained"
        )


def watched(setting: dict[str, Any], seed: int, report: Report) -> Watched:
    """Run a setting's federation, once for all methods of a row, and for rows that differ in what they measure."""
    unknown = sorted(setting.keys() - KEYS)
    if unknown:
        raise CorruptFile(f"a row's setting has no {unknown[0]!r} (known: {', '.join(sorted(KEYS))})")
    kept = {key: value for key, value in setting.items() if key not in ("measures", "records", "references")}
    key = (json.dumps(kept, sort_keys=True), seed)
    if key not in _KEPT:
        _KEPT.clear()  # the messages of one federation are many
        _KEPT[key] = _run(kept, seed, report)
    return _KEPT[key]


_KEPT: dict[tuple[str, int], Watched] = {}


def _run(setting: dict[str, Any], seed: int, report: Report) -> Watched:
    clients = _clients(json.dumps({key: value for key, value in setting.items() if key not in TRAINING}), seed)
    spec = clients[0].spec
    model = build(
        "mlp", shape=list(spec.shape), classes=spec.classes or 1, hidden=setting["hidden"],
        batch_norm=setting.get("batch_norm", False), seed=derive(seed, "network") % 2**31,
    )  # fmt: skip
    began = time.perf_counter()
    federation = run_federation(
        model, clients, rounds=setting["rounds"], lr=setting["lr"], epochs=setting.get("epochs", 1),
        batch_size=setting.get("batch_size"), every=setting.get("every", 10), watch=range(len(clients)),
        share_statistics=not setting.get("batch_norm", False), defences=defences_of(setting),
        seed=derive(seed, "federation"), progress=lambda done, rounds: report(done, rounds, float("nan")),
    )  # fmt: skip
    if federation.interrupted:
        raise KeyboardInterrupt
    return Watched(setting, model, clients, list(federation.observations.values()), time.perf_counter() - began, seed)


@lru_cache(maxsize=4)
def _clients(text: str, seed: int) -> list[Dataset]:
    """The clients of a setting, each with at most ``samples`` samples, and as many ``duplicates`` of random ones."""
    setting = json.loads(text)
    dataset = _dataset(setting)
    if setting.get("standardise"):
        mean, deviation = target_scale(setting)
        dataset = replace(dataset, targets=(dataset.targets - mean) / deviation)
    name = setting.get("partition", "iid")
    if name not in PARTITIONS:
        raise CorruptFile(f"a row's partition is one of {', '.join(PARTITIONS)}, not {name!r}")
    shares = {"clients": setting["clients"]} if name == "iid" else {}
    clients: list[Dataset] = PARTITIONS[name](
        dataset, **shares, **setting.get("partition_options", {}), seed=derive(seed, "clients") % 2**31
    )  # type: ignore[operator]
    wanted = setting.get("samples")
    if wanted is not None:
        clients = [_fewer(client, wanted, derive(seed, "rows", place)) for place, client in enumerate(clients)]
    clients = clients[: setting.get("clients")]
    drawn = torch.randint(len(clients), (setting.get("duplicates", 0),), generator=generator(seed, "duplicates"))
    return [*clients, *(clients[place] for place in drawn.tolist())]


def target_scale(setting: dict[str, Any]) -> tuple[float, float]:
    """The mean and the deviation that a regression's targets had before they were standardised; else 0 and 1."""
    if not setting.get("standardise"):
        return 0.0, 1.0
    values = _dataset(setting).targets
    return float(values.mean()), float(values.std())


def _dataset(setting: dict[str, Any]) -> Dataset:
    split = {"split": setting["split"]} if "split" in setting else {}
    return load(setting["data"], **split, **setting.get("data_options", {}))


def _fewer(client: Dataset, wanted: int, seed: int) -> Dataset:
    """A part of a client's rows; a larger part holds the smaller ones (appendix C.2)."""
    rows = torch.randperm(len(client), generator=generator(seed, "order"))[:wanted]
    return client.share(rows.sort().values, client.name)
