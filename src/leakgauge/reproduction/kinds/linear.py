"""Benchmark rows in which clients train a linear regression (LMRA by Driouich et al., propositions 1 and 3).

The attack rebuilds the optimum of one client, which is the linear model with the lowest error on the client's data. The
measure is the relative error of the rebuilt optimum.
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
    """Rebuild the optimal linear model of client 0 in each of several federations, and measure the errors.

    Each federation has its own data, and records the rounds of client 0. The attack skips the first ``skip_rounds``
    recorded rounds and uses the next ``observed`` rounds. Both numbers are values of the table ``[linear]`` of the
    benchmark row. By default, ``skip_rounds`` is 0 and ``observed`` is ``size + 1``. Here, ``size`` is the number of
    parameters, including the bias. If a method has the options ``size``, ``epochs`` or ``observed``, they replace the
    values in the set-up of the benchmark row.
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
    """Return the setting of a job, and the options of its attack.

    The options ``size``, ``observed`` and ``epochs`` of a method are not options of the attack. They change the
    setting.
    """
    options = dict(job.method.options)
    linear: dict[str, object] = {key: options.pop(key) for key in ("size", "observed") if key in options}
    training: dict[str, object] = {key: options.pop(key) for key in ("epochs",) if key in options}
    return job.setting.changed({"linear": linear, "training": training}), options


@lru_cache(maxsize=32)  # methods that differ only in the number of rounds use the same federations
def _watched_client(setting: Setting, number: int, seed: int) -> tuple[Dataset, list[Observation]]:
    """Run one federation, and return the data and the recorded messages of client 0.

    The federation is so long that client 0 is expected to take part in more than ``setting.linear["longest"]`` rounds.
    The attack uses at most this number of rounds.
    """
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
    """Generate the data of all clients.

    Inputs are Gaussian. Targets are a linear function of the inputs plus noise, with a different function for each
    client.
    """
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
