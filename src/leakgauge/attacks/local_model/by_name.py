"""The ways to rebuild a local model, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from leakgauge.attacks.local_model.distilled import Distilled
from leakgauge.attacks.local_model.learned import Learned
from leakgauge.attacks.local_model.messages import LocalModelAttack
from leakgauge.attacks.local_model.methods import Exact, GlobalModel, LastReturned, LeastSquares, Secant
from leakgauge.core.errors import InvalidInput, UnknownName

#: Every way to rebuild a local model by the name that configuration files use; ``lmra`` is the one to use by default.
METHODS: dict[str, Callable[..., LocalModelAttack]] = {
    "lmra": Distilled,
    "distilled": Distilled,
    "learned": Learned,
    "secant": Secant,
    "exact": Exact,
    "least_squares": LeastSquares,
    "last_returned": LastReturned,
    "global": GlobalModel,
}


def build(name: str, **options: Any) -> LocalModelAttack:
    """Make one by name; options are its fields."""
    if name not in METHODS:
        raise UnknownName("way to rebuild a local model called", name, METHODS)
    valid = inspect.signature(METHODS[name]).parameters
    for option in options:
        if option not in valid:
            raise UnknownName(f"option of {name}", option, valid)
    given = {key: tuple(one) if isinstance(one, list) else one for key, one in options.items()}
    try:
        return METHODS[name](**given)
    except TypeError as problem:
        raise InvalidInput(f"an option of {name} is of the wrong kind ({problem}): {given}") from problem
