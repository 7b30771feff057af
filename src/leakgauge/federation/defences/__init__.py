"""The defences, with one file for each idea, and a registry from names to defences.

A client applies its defences in the order given: ``fedavg(..., defences=(Clipping(1.0), GaussianNoise(0.01)))``. Every
defence class in a file of this package that sets ``name`` is registered under this name.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules
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


def _registered() -> dict[str, type[Defence]]:
    """Return every named defence class of this package, sorted by name."""
    classes: dict[str, type[Defence]] = {}
    for file in iter_modules(__path__, f"{__name__}."):
        for value in vars(import_module(file.name)).values():
            if not inspect.isclass(value) or value.__module__ != file.name or not issubclass(value, Defence):
                continue
            name = vars(value).get("name", "")
            if classes.get(name, value) is not value:
                raise InvalidInput(
                    f"{classes[name].__name__} and {value.__name__} are both named {name!r}. Rename one of them."
                )
            if name:
                classes[name] = value
    return dict(sorted(classes.items()))


#: Every defence by the name that the command line and configuration files use.
DEFENCES: dict[str, type[Defence]] = _registered()


def build(name: str, **options: Any) -> Defence:
    """Build the defence with a given name.

    Args:
        name: A name in :data:`DEFENCES`.
        options: The arguments of the defence's class.
    """
    if name not in DEFENCES:
        raise UnknownName("defence", name, DEFENCES)
    valid = inspect.signature(DEFENCES[name]).parameters
    for option in options:
        if option not in valid:
            raise UnknownName(f"option of {name}", option, valid)
    missing = [key for key, value in valid.items() if value.default is value.empty and key not in options]
    if missing:
        raise InvalidInput(f"the defence {name} needs its {missing[0]}. Use build({name!r}, {missing[0]}=...).")
    return DEFENCES[name](**options)


def __getattr__(name: str) -> Any:
    """Return the registered defence class with this name. Python calls this for names that are not imported above."""
    for defence in DEFENCES.values():
        if defence.__name__ == name:
            return defence
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
