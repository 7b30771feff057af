"""How a model was made, in words that fit into a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from leakgauge.core.errors import InvalidInput

_ATTRIBUTE = "_leakgauge_recipe"


@dataclass(frozen=True)
class Recipe:
    """The name and options with which :func:`leakgauge.models.build` makes an architecture again."""

    name: str
    options: dict[str, object] = field(default_factory=dict)


def make_recipe(name: str, options: Mapping[str, object]) -> Recipe:
    """A recipe whose options are what they would be after a round trip through JSON."""
    plain: dict[str, object] = {}
    for key, value in options.items():
        try:
            plain[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"option {key} of model {name!r} is {value!r}, which a file cannot record; "
                "give numbers, texts, booleans, None, or lists of them"
            ) from error
    return Recipe(name, plain)


def attach_recipe(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Store the recipe on the model as a plain attribute: no parameter, no buffer, kept by ``deepcopy``."""
    setattr(model, _ATTRIBUTE, recipe)
    return model


def recipe_of(model: nn.Module) -> Recipe | None:
    """How ``build`` made this model, or ``None`` if it was made otherwise.

    >>> print(recipe_of(nn.Linear(2, 2)))
    None
    """
    recipe = getattr(model, _ATTRIBUTE, None)
    return recipe if isinstance(recipe, Recipe) else None
