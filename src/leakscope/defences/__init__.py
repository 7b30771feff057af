"""The defences by name: one idea a file. A client takes them in the order given: ``fedavg(..., defences=(...))``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from leakscope.defences.dp_sgd import DPSGD, dp_sgd
from leakscope.defences.mixup import Mixup
from leakscope.defences.noise import GaussianNoise, LaplacianNoise
from leakscope.defences.pruning import RandomPruning
from leakscope.errors import InvalidInput, UnknownName
from leakscope.federated.defence import BatchDefence, Defence, SampleGradientDefence

#: Every defence by the name that the command line and configuration files use.
DEFENCES: dict[str, Callable[..., Defence]] = {
    "gaussian_noise": GaussianNoise,
    "laplacian_noise": LaplacianNoise,
    "random_pruning": RandomPruning,
    "mixup": Mixup,
    "dp_sgd": dp_sgd,
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
    "Defence",
    "GaussianNoise",
    "LaplacianNoise",
    "Mixup",
    "RandomPruning",
    "SampleGradientDefence",
    "build",
    "dp_sgd",
]
