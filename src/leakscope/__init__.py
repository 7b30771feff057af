"""Leakscope: how much of a federated-learning client's data can be rebuilt from the updates it sends.

>>> import leakscope as ls
>>> clients = ls.data.iid(ls.data.load("digits"), clients=100, seed=0)
>>> model = ls.models.build("lenet", shape=(1, 8, 8), classes=10, seed=0)
>>> observation, truth = ls.fedavg(model, clients[0], lr=0.01, epochs=2, batch_size=6)
>>> result = ls.attacks.inverting_gradients(steps=10)(observation)
>>> score = ls.score(result, truth)
"""

from leakscope import attacks, data, defences, errors, inference, metrics, models
from leakscope.attacks import Attack, Reconstruction
from leakscope.auditing import audit
from leakscope.data import Dataset
from leakscope.errors import LeakscopeError
from leakscope.federated.client import fedavg, fedsgd
from leakscope.federated.defence import Defence
from leakscope.federated.rounds import Federation, run_federation
from leakscope.federated.training import local_sgd
from leakscope.metrics import Score, score
from leakscope.observation import DataSpec, LocalTraining, Observation
from leakscope.storage import load, load_all, load_rounds, save, save_all
from leakscope.truth import Truth

__version__ = "0.1.0"

__all__ = [
    "Attack",
    "DataSpec",
    "Dataset",
    "Defence",
    "Federation",
    "LeakscopeError",
    "LocalTraining",
    "Observation",
    "Reconstruction",
    "Score",
    "Truth",
    "attacks",
    "audit",
    "data",
    "defences",
    "errors",
    "fedavg",
    "fedsgd",
    "inference",
    "load",
    "load_all",
    "load_rounds",
    "local_sgd",
    "metrics",
    "models",
    "run_federation",
    "save",
    "save_all",
    "score",
]
