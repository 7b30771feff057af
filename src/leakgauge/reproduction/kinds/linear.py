"""Rows of LMRA's linear case.

The attack rebuilds the optimum of a client's linear regression. The measure is the relative error of the rebuilt
optimum.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache

import torch

from leakgauge.attacks import local_model
from leakgauge.attacks.local_model import LeastSquares
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.params import flatten
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator
from leakgauge.data import Dataset
from leakgauge.federation.local_only import least_squares_optimum
from leakgauge.federation.rounds import run_federation
from leakgauge.models import build
from leakgauge.reproduction.kinds.base import Job, Kind, Outcome
from leakgauge.reproduction.metrics import mean_of, share_of, single
from leakgauge.reproduction.setting import Setting


def rebuild_optimum(job: Job, report: Report) -> Outcome:
    """Rebuild the optimum of client 0 in each of several federations, from ``observed`` recorded rounds.

    The options ``size``, ``epochs`` and ``observed`` of a method replace the values in the setting. ``size`` is the
    number of parameters, including the bias. ``observed`` is ``size + 1`` by default. At least ``longest`` rounds are
    recorded. The first ``skip_rounds`` rounds are left out, and each method sees the next ``observed`` rounds. Each
    federation has its own data.
    """
    setting, options = _setting_of(job)
    attack = local_model.build(job.method.attack, **options)
    linear = setting.linear
    observed = linear.get("observed", linear["size"] + 1)
    longest = max(observed, linear.get("longest", 0))
    shared = setting.changed({"linear": {"observed": 0, "longest": longest}})
    errors, bounds, seconds = [], [], 0.0
    for number in range(job.clients):
        data, messages = _watched_client(shared, number, job.seed)
        rounds = messages[linear.get("skip_rounds", 0) :][:observed]
        began = time.perf_counter()
        rebuilt = attack(rounds, progress=False)
        seconds += time.perf_counter() - began
        optimum = flatten(least_squares_optimum(data, bias=True))
        errors.append(float((flatten(rebuilt.weights) - optimum).norm() / optimum.norm()))
        bounds.append(math.inf if rebuilt.uncertainty is None else rebuilt.uncertainty / float(optimum.norm()))
        report(number + 1, job.clients, errors[-1])
    chance = 1.0  # the relative error of a model whose weights are all zero
    measures = {
        "relative_error": mean_of("relative_error", torch.tensor(errors, dtype=torch.double), chance),
        "worst_relative_error": single("worst_relative_error", max(errors), job.clients),
    }
    if isinstance(attack, LeastSquares):
        within = sum(error <= bound for error, bound in zip(errors, bounds, strict=True))
        measures["relative_bound"] = single("relative_bound", sum(bounds) / len(bounds), job.clients)
        measures["within_bound"] = share_of("within_bound", within, job.clients)
    return Outcome(measures, len(rounds), seconds / job.clients, job.clients)


def _setting_of(job: Job) -> tuple[Setting, dict[str, object]]:
    """Return the setting and the options of the attack.

    Some options of the method are not options of the attack. These options change the setting.
    """
    options = dict(job.method.options)
    linear: dict[str, object] = {key: options.pop(key) for key in ("size", "observed") if key in options}
    training: dict[str, object] = {key: options.pop(key) for key in ("epochs",) if key in options}
    return job.setting.changed({"linear": linear, "training": training}), options


@lru_cache(maxsize=32)  # methods that differ only in the number of rounds use the same federations
def _watched_client(setting: Setting, number: int, seed: int) -> tuple[Dataset, list[Observation]]:
    """Return client 0 of a federation, and the messages of client 0 from at least ``longest`` rounds."""
    data = _clients(setting, derive(seed, "federation", number))
    model = build("mlp", shape=[setting.linear["size"] - 1], classes=1, hidden=[], seed=number).double()
    clients_per_round = setting.federation["clients_per_round"]
    share = clients_per_round / len(data)
    federation = run_federation(
        model,
        data,
        rounds=math.ceil(1.2 * setting.linear["longest"] / share) + 20,
        **setting.recipe,
        clients_per_round=clients_per_round,
        watch=[0],
        seed=derive(seed, number),
        hidden=("lr", "epochs", "batch_size"),
    )
    return data[0], federation.observations[0]


def _clients(setting: Setting, seed: int) -> list[Dataset]:
    """Generate the data of clients. Inputs are Gaussian, and each client has its own true linear model."""
    draw, size = generator(seed, "linear"), setting.linear["size"] - 1
    spec = DataSpec((size,), None, bounded=False)
    clients = []
    for number in range(setting.federation["clients"]):
        inputs = torch.randn(setting.training["samples"], size, generator=draw, dtype=torch.double)
        truth = torch.randn(size, generator=draw, dtype=torch.double)
        noise = setting.linear["noise"] * torch.randn(len(inputs), generator=draw, dtype=torch.double)
        clients.append(Dataset(inputs, inputs @ truth + noise, spec, name=f"client {number}"))
    return clients


LINEAR = Kind(rebuild_optimum, frozenset({"training", "federation", "linear"}), together=True)
