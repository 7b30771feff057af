"""Leakgauge: a tool that measures how much data of a federated client can be rebuilt from the client's updates.

>>> import leakgauge as lg
>>> clients = lg.data.iid(lg.data.load("digits"), clients=100, seed=0)
>>> model = lg.models.build("lenet", shape=(1, 8, 8), classes=10, seed=0)
>>> observation, truth = lg.fedavg(model, clients[0], lr=0.01, epochs=2, batch_size=6)
>>> result = lg.attacks.inverting_gradients(steps=10)(observation)
>>> score = lg.score(result, truth)

Names are loaded when they are first used, so that ``import leakgauge`` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakgauge import attacks, data, evaluation, models
    from leakgauge.attacks import Attack, Reconstruction
    from leakgauge.core import errors
    from leakgauge.core.errors import LeakgaugeError
    from leakgauge.core.measure import Measure
    from leakgauge.core.observation import DataSpec, LocalTraining, Observation
    from leakgauge.core.observation_file import load, load_all, load_rounds, save, save_all
    from leakgauge.core.truth import Truth
    from leakgauge.data import Dataset
    from leakgauge.evaluation import Score, metrics, score
    from leakgauge.evaluation.verdict import Finding, Verdict
    from leakgauge.federation import defences
    from leakgauge.federation.client import fedavg, fedsgd
    from leakgauge.federation.defence import Defence
    from leakgauge.federation.received import ModelCheck, check_model
    from leakgauge.federation.recording.keeper import keeper
    from leakgauge.federation.recording.loop import record
    from leakgauge.federation.rehearsal import public_data
    from leakgauge.federation.rounds import Federation, run_federation
    from leakgauge.federation.training import local_sgd
    from leakgauge.workflows.attack_captures import attack
    from leakgauge.workflows.audit import audit
    from leakgauge.workflows.frontier import frontier
    from leakgauge.workflows.infer_captures import infer

__version__ = "0.2.0"

#: Each public name and the module that defines it; an empty string stands for a module of that name.
_HOMES = {
    "Attack": "attacks",
    "DataSpec": "core.observation",
    "Dataset": "data",
    "Defence": "federation.defence",
    "Federation": "federation.rounds",
    "Finding": "evaluation.verdict",
    "LeakgaugeError": "core.errors",
    "LocalTraining": "core.observation",
    "Measure": "core.measure",
    "ModelCheck": "federation.received",
    "Observation": "core.observation",
    "Reconstruction": "attacks",
    "Score": "evaluation",
    "Truth": "core.truth",
    "Verdict": "evaluation.verdict",
    "attack": "workflows.attack_captures",
    "attacks": "",
    "audit": "workflows.audit",
    "check_model": "federation.received",
    "data": "",
    "defences": "federation",
    "errors": "core",
    "evaluation": "",
    "fedavg": "federation.client",
    "fedsgd": "federation.client",
    "frontier": "workflows.frontier",
    "infer": "workflows.infer_captures",
    "keeper": "federation.recording.keeper",
    "load": "core.observation_file",
    "load_all": "core.observation_file",
    "load_rounds": "core.observation_file",
    "local_sgd": "federation.training",
    "metrics": "evaluation",
    "models": "",
    "public_data": "federation.rehearsal",
    "record": "federation.recording.loop",
    "run_federation": "federation.rounds",
    "save": "core.observation_file",
    "save_all": "core.observation_file",
    "score": "evaluation",
}

__all__ = [
    "Attack",
    "DataSpec",
    "Dataset",
    "Defence",
    "Federation",
    "Finding",
    "LeakgaugeError",
    "LocalTraining",
    "Measure",
    "ModelCheck",
    "Observation",
    "Reconstruction",
    "Score",
    "Truth",
    "Verdict",
    "attack",
    "attacks",
    "audit",
    "check_model",
    "data",
    "defences",
    "errors",
    "evaluation",
    "fedavg",
    "fedsgd",
    "frontier",
    "infer",
    "keeper",
    "load",
    "load_all",
    "load_rounds",
    "local_sgd",
    "metrics",
    "models",
    "public_data",
    "record",
    "run_federation",
    "save",
    "save_all",
    "score",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leakgauge' has no attribute {name!r}")
    home = _HOMES[name]
    if not home:
        return import_module(f"leakgauge.{name}")
    package = import_module(f"leakgauge.{home}")
    try:
        value = getattr(package, name)
    except AttributeError:
        value = import_module(f"leakgauge.{home}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
