"""The defences by name: one idea a file. A client takes them in the order given: ``fedavg(..., defences=(...))``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.federation.defence import (
    BatchDefence,
    Defence,
    GradientDefence,
    RecipeDefence,
    ServerDefence,
    TrainingDefence,
)
from leakgauge.federation.defences.clipping import Clipping
from leakgauge.federation.defences.dpsgd import DPSGD
from leakgauge.federation.defences.local_work import LocalWork
from leakgauge.federation.defences.mixup import Mixup
from leakgauge.federation.defences.noise import GaussianNoise, LaplacianNoise
from leakgauge.federation.defences.pruning import RandomPruning, TopK
from leakgauge.federation.defences.quantisation import Quantisation
from leakgauge.federation.defences.secure_aggregation import SecureAggregation

#: Every defence by the name that the command line and configuration files use.
DEFENCES: dict[str, Callable[..., Defence]] = {
    "clipping": Clipping,
    "dpsgd": DPSGD,
    "gaussian_noise": GaussianNoise,
    "laplacian_noise": LaplacianNoise,
    "local_work": LocalWork,
    "mixup": Mixup,
    "quantisation": Quantisation,
    "random_pruning": RandomPruning,
    "secure_aggregation": SecureAggregation,
    "top_k": TopK,
}


def build(name: str, **options: Any) -> Defence:
    """Make a defence by name; options are the arguments of its factory."""
    if name not in DEFENCES:
        raise UnknownName("defence", name, DEFENCES)
    valid = inspect.signature(DEFENCES[name]).parameters
    for option in options:
        if option not in valid:
            raise UnknownName(f"option of {name}", option, valid)
    missing = [key for key, value in valid.items() if value.default is value.empty and key not in options]
    if missing:
        raise InvalidInput(f"the defence {name} needs its {missing[0]}: build({name!r}, {missing[0]}=...)")
    return DEFENCES[name](**options)


__all__ = [
    "DEFENCES",
    "DPSGD",
    "BatchDefence",
    "Clipping",
    "Defence",
    "GaussianNoise",
    "GradientDefence",
    "LaplacianNoise",
    "LocalWork",
    "Mixup",
    "Quantisation",
    "RandomPruning",
    "RecipeDefence",
    "SecureAggregation",
    "ServerDefence",
    "TopK",
    "TrainingDefence",
    "build",
]
