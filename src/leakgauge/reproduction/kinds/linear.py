"""Rows of LMRA's linear case: the error of a client's rebuilt optimum, relative to that optimum."""

from __future__ import annotations

import json
import math
import time
from functools import lru_cache
from typing import Any

import torch

from leakgauge.attacks import local_model
from leakgauge.attacks.local_model import LeastSquares
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.params import flatten
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator
from leakgauge.data import Dataset
from leakgauge.evaluation import Interval, mean_interval, wilson_interval
from leakgauge.federation.local_only import least_squares_optimum
from leakgauge.federation.rounds import run_federation
from leakgauge.models import build
from leakgauge.reproduction.rows import Method


def rebuild_optimum(
    setting: dict[str, Any], method: Method, clients: int, steps: int | None, seed: int, report: Report
) -> dict[str, Any]:
    """Watch client 0 of ``clients`` federations with data of their own for ``observed`` rounds; rebuild its optimum.

    ``size`` counts the parameters, the bias among them; ``observed`` is ``size + 1`` by default. A method's ``size``,
    ``epochs`` and ``observed`` stand in for the setting's; federations last for
    ``longest`` observed rounds, of which each method sees the first.
    """
    options = dict(method.options)
    here = setting | {key: options.pop(key) for key in ("size", "epochs", "observed") if key in options}
    wanted = here.get("observed", here["size"] + 1)
    attack = local_model.build(method.attack, **options)
    errors, bounds, seconds = [], [], 0.0
    for number in range(clients):
        longest = max(wanted, here.get("longest", 0))
        text = json.dumps({key: value for key, value in here.items() if key != "observed"} | {"longest": longest})
        data, seen = _watched(text, number, seed)
        rounds = seen[here.get("skip", 0) :][:wanted]
        began = time.perf_counter()
        found = attack(rounds, progress=False)
        seconds += time.perf_counter() - began
        optimum = flatten(least_squares_optimum(data, bias=True))
        errors.append(float((flatten(found.weights) - optimum).norm() / optimum.norm()))
        bounds.append(math.inf if found.uncertainty is None else found.uncertainty / float(optimum.norm()))
        report(number + 1, clients, errors[-1])
    ours = {
        "relative_error": mean_interval(torch.tensor(errors, dtype=torch.double), limits=(0.0, math.inf)),
        "worst_relative_error": Interval(max(errors), None, None),
    }
    if isinstance(attack, LeastSquares):
        within = sum(error <= bound for error, bound in zip(errors, bounds, strict=True))
        ours["relative_bound"] = Interval(sum(bounds) / len(bounds), None, None)
        ours["within_bound"] = wilson_interval(within, clients)
    return {
        "clients": clients,
        "steps": len(rounds),
        "ours": ours,
        "chance": {"relative_error": 1.0},  # the model with all weights zero
        "seconds": seconds / clients,
    }


@lru_cache(maxsize=32)  # methods that differ in how many rounds they see share federations
def _watched(text: str, number: int, seed: int) -> tuple[Dataset, list[Observation]]:
    """Client 0 of a federation, and its messages of at least ``longest`` rounds."""
    setting = json.loads(text)
    data = _clients(setting, derive(seed, "federation", number))
    model = build("mlp", shape=[setting["size"] - 1], classes=1, hidden=[], seed=number).double()
    share = setting["clients_per_round"] / len(data)
    federation = run_federation(
        model, data, rounds=math.ceil(1.2 * setting["longest"] / share) + 20, lr=setting["lr"],
        epochs=setting["epochs"], batch_size=setting.get("batch_size"), clients_per_round=setting["clients_per_round"],
        watch=[0], seed=derive(seed, number), hidden=("lr", "epochs", "batch_size"),
    )  # fmt: skip
    return data[0], federation.observations[0]


def _clients(setting: dict[str, Any], seed: int) -> list[Dataset]:
    """Regressions with Gaussian inputs, whose true models are drawn apart."""
    draw, size = generator(seed, "linear"), setting["size"] - 1
    spec = DataSpec((size,), None, bounded=False)
    found = []
    for number in range(setting["federation"]):
        inputs = torch.randn(setting["samples"], size, generator=draw, dtype=torch.double)
        truth = torch.randn(size, generator=draw, dtype=torch.double)
        noise = setting["noise"] * torch.randn(len(inputs), generator=draw, dtype=torch.double)
        found.append(Dataset(inputs, inputs @ truth + noise, spec, name=f"client {number}"))
    return found
