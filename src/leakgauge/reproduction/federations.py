"""Federations in which the server records the messages of many rounds, for the paper LMRA (Driouich et al.)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from leakgauge.attacks.local_model import ActiveServer, LocalModel
from leakgauge.core.errors import UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, buffers_of, parameters_of
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator
from leakgauge.data import Dataset, adult_phd, by_group, iid, orl_lmra
from leakgauge.federation.local_only import least_squares_optimum, train_alone
from leakgauge.federation.rounds import run_federation
from leakgauge.federation.steering import Steering
from leakgauge.reproduction.setting import Setting

#: The functions that divide a dataset among clients, by name.
PARTITIONS: dict[str, Callable[..., list[Dataset]]] = {
    "adult_phd": adult_phd,
    "by_group": by_group,
    "orl_lmra": orl_lmra,
    "iid": iid,
}
#: The largest number of epochs of a client that trains alone. The trained model records whether the training converged.
REFERENCE_EPOCHS = 2000


@dataclass(frozen=True, eq=False)
class WatchedFederation:
    """A federation with the recorded messages of every client.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row.
        model: The network with its initial weights.
        clients: The clients' data.
        observations: For each client, the list of its recorded messages.
        seconds: The duration of the federation in seconds.
        seed: The seed of the run.
        trained: The network with the weights at the end of the federation.
        references: A dictionary of the models that clients train alone. The keys are the index of the client, the kind
            of training and the number of the start. A model is trained when it is first needed.
    """

    setting: Setting
    model: nn.Module = field(repr=False)
    clients: list[Dataset] = field(repr=False)
    observations: list[list[Observation]] = field(repr=False)
    seconds: float
    seed: int
    trained: nn.Module = field(repr=False)
    references: dict[tuple[int, str, int], LocalModel] = field(default_factory=dict, repr=False)

    def reference(self, index: int, training: str = "converged", start: int = 0) -> LocalModel:
        """Return the model that a client trains alone.

        Args:
            index: The index of the client.
            training: How the client trains. With ``"converged"``, it trains with Adam until the loss no longer falls,
                for at most ``REFERENCE_EPOCHS`` epochs. With ``"recipe"``, it trains with the federation's own recipe
                for as many rounds as the federation has, as the authors of LMRA do.
            start: The number of the initial model. 0 is the federation's own initial model. Any other number gives
                another random model, for a comparison of two independently trained models of one client.
        """
        if training not in REFERENCES:
            raise UnknownName("way to train a client's own model", training, REFERENCES)
        key = (index, training, start)
        if key not in self.references:
            model = self.model
            if start:
                model = self.setting.network(self.clients[index].spec, derive(self.seed, "network", start) % 2**31)
            self.references[key] = REFERENCES[training](self, index, model)
        return self.references[key]

    def converged_model(self, index: int, model: nn.Module) -> LocalModel:
        """Train a client alone until its loss no longer falls, with the same Adam in every benchmark row.

        A linear regression is solved directly, so its result does not depend on the start.

        Args:
            index: The index of the client.
            model: The model to start from.
        """
        client, names = self.clients[index], [name for name, _ in model.named_parameters()]
        if client.spec.classes is None and names[:1] == ["head.weight"]:
            optimum = least_squares_optimum(client, bias="head.bias" in names)
            exact = {name: value.to(model.get_parameter(name)) for name, value in optimum.items()}
            return self._own_model(index, exact, {}, "solved by least squares")
        alone = train_alone(
            model,
            client,
            lr=1e-3,
            epochs=REFERENCE_EPOCHS,
            batch_size=self.setting.training.get("batch_size"),
            adam=True,
            fitted=0.05,
            seed=derive(self.seed, "alone", index),
        )
        ended = "converged" if alone.converged else "still falling"
        words = f"trained alone for {alone.epochs} epochs; loss {alone.losses[-1]:.4g}, {ended}"
        return self._own_model(index, alone.weights, alone.buffers, words)

    def model_by_recipe(self, index: int, model: nn.Module) -> LocalModel:
        """Train a client alone with the federation's recipe, for as many rounds as the federation has.

        Args:
            index: The index of the client.
            model: The model to start from.
        """
        rounds = self.setting.federation["rounds"]
        alone = run_federation(
            model, [self.clients[index]], rounds=rounds, seed=derive(self.seed, "alone", index), **self.training
        )
        words = f"trained alone for {rounds} rounds of the federation's recipe"
        return self._own_model(index, alone.weights, alone.buffers, words)

    def steered(self, rule: ActiveServer, chosen: Sequence[int]) -> dict[int, list[Observation]]:
        """Return the messages of clients that a malicious server steers after the end of the federation.

        Each client is steered on its own, as if it were the only one. The other clients go on without it.

        Args:
            rule: The rule by which the server chooses the weights that it sends.
            chosen: The indices of the steered clients.
        """
        rounds = self.setting.federation.get("steered_rounds", 50)
        federation = run_federation(
            self.trained,
            self.clients,
            rounds=1,
            weighting=self.setting.federation.get("weighting", "samples"),
            share_statistics=not has_batch_norm(self.setting),
            defences=self.setting.chain,
            steering=Steering(rule, chosen, rounds),
            seed=derive(self.seed, "steered"),
            **self.setting.recipe,
            **self.setting.exposure,
        )
        return federation.observations

    @property
    def training(self) -> dict[str, Any]:
        """The settings of the clients' training, as keyword arguments of a federation."""
        chosen = {key: value for key, value in self.setting.exposure.items() if key in ("mode", "loss")}
        return {**self.setting.recipe, **chosen}

    def _own_model(self, index: int, weights: Params, buffers: Params, words: str) -> LocalModel:
        loss = self.observations[index][0].training.loss
        return LocalModel(self.model, weights, buffers, self.clients[index].spec, loss, words)

    def untrained(self, index: int) -> LocalModel:
        """Return the initial model of the federation, which the attacker knows without any message."""
        first = self.observations[index][0]
        return LocalModel(
            self.model, parameters_of(self.model), buffers_of(self.model), first.data, first.training.loss, "untrained"
        )


#: The ways in which a client's own model is trained, by name.
REFERENCES: dict[str, Callable[[WatchedFederation, int, nn.Module], LocalModel]] = {
    "converged": WatchedFederation.converged_model,
    "recipe": WatchedFederation.model_by_recipe,
}

#: The latest federation. All methods of a row use it. Rows that differ only in their measures use it too.
_LATEST: dict[tuple[Setting, int], WatchedFederation] = {}


def watch_federation(setting: Setting, seed: int, report: Report) -> WatchedFederation:
    """Run the federation that a setting describes, and return it with its recorded messages.

    Only the last federation is kept in memory. If the last federation had the same setting and the same seed, it is
    returned and not run again.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row.
        seed: The seed of the run.
        report: The function that is called after each round.
    """
    key = (setting, seed)
    if key not in _LATEST:
        _LATEST.clear()  # only one federation is kept, because its messages are large
        _LATEST[key] = _run(setting, seed, report)
    return _LATEST[key]


def _run(setting: Setting, seed: int, report: Report) -> WatchedFederation:
    clients = federation_clients(setting, seed)
    model = setting.network(clients[0].spec, derive(seed, "network") % 2**31)
    began = time.perf_counter()
    federation = run_federation(
        model,
        clients,
        rounds=setting.federation["rounds"],
        every=setting.federation.get("every", 10),
        clients_per_round=setting.federation.get("clients_per_round"),
        weighting=setting.federation.get("weighting", "samples"),
        watch=range(len(clients)),
        share_statistics=not has_batch_norm(setting),
        defences=setting.chain,
        seed=derive(seed, "federation"),
        progress=lambda done, rounds: report(done, rounds, float("nan")),
        **setting.recipe,
        **setting.exposure,
    )
    if federation.interrupted:
        raise KeyboardInterrupt
    seconds = time.perf_counter() - began
    trained = federation.load_into(copy.deepcopy(model))
    return WatchedFederation(setting, model, clients, list(federation.observations.values()), seconds, seed, trained)


def has_batch_norm(setting: Setting) -> bool:
    """Return whether the network has batch norm.

    In a federation with such a network, clients do not send their batch-norm statistics.
    """
    return bool(setting.model.get("options", {}).get("batch_norm", False))


def federation_clients(setting: Setting, seed: int) -> list[Dataset]:
    """Return the data of all clients of a federation.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row. ``samples`` in
            ``[training]`` limits the samples of each client. ``duplicates`` in ``[federation]`` is the number of random
            clients that are added a second time.
        seed: The seed of the run.
    """
    training: dict[str, Any] = {key: setting.training[key] for key in ("samples",) if key in setting.training}
    numbers: dict[str, Any] = {
        key: setting.federation[key] for key in ("clients", "duplicates") if key in setting.federation
    }
    return _clients(Setting(data=setting.data, training=training, federation=numbers), seed)


@lru_cache(maxsize=4)
def _clients(setting: Setting, seed: int) -> list[Dataset]:
    dataset = setting.load()
    if setting.data.get("standardise_targets"):
        mean, deviation = target_scale(setting)
        dataset = replace(dataset, targets=(dataset.targets - mean) / deviation)
    clients = _divided(dataset, setting, seed)
    samples = setting.training.get("samples")
    if samples is not None:
        clients = [_fewer(client, samples, derive(seed, "rows", place)) for place, client in enumerate(clients)]
    clients = clients[: setting.federation.get("clients")]
    duplicates = setting.federation.get("duplicates", 0)
    drawn = torch.randint(len(clients), (duplicates,), generator=generator(seed, "duplicates"))
    return [*clients, *(clients[place] for place in drawn.tolist())]


def _divided(dataset: Dataset, setting: Setting, seed: int) -> list[Dataset]:
    name = setting.data.get("partition", "iid")
    if name not in PARTITIONS:
        raise UnknownName("partition for [data] partition called", name, PARTITIONS)
    options: dict[str, Any] = {"clients": setting.federation["clients"]} if name == "iid" else {}
    options |= setting.data.get("partition_options", {})
    return PARTITIONS[name](dataset, **options, seed=derive(seed, "clients") % 2**31)


def target_scale(setting: Setting) -> tuple[float, float]:
    """Return the mean and the standard deviation of the targets before they were standardised.

    If the targets were not standardised, return 0 and 1.
    """
    if not setting.data.get("standardise_targets"):
        return 0.0, 1.0
    values = setting.load().targets
    return float(values.mean()), float(values.std())


def _fewer(client: Dataset, samples: int, seed: int) -> Dataset:
    """Reduce the data of a client to ``samples`` random samples (LMRA, appendix C.2).

    With the same seed, a call with more ``samples`` returns all samples of a call with fewer ``samples``, and others.
    """
    rows = torch.randperm(len(client), generator=generator(seed, "order"))[:samples]
    return client.share(rows.sort().values, client.name)
