"""The recipe of a model, which is its name and its options in a form that JSON can store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from leakgauge.core.errors import InvalidInput

_ATTRIBUTE = "_leakgauge_recipe"


@dataclass(frozen=True)
class Recipe:
    """The name and the options with which :func:`leakgauge.models.build` can build the same architecture again.

    Args:
        name: The name of the model.
        options: The options of the function that builds the model.
    """

    name: str
    options: dict[str, object] = field(default_factory=dict)


def make_recipe(name: str, options: Mapping[str, object]) -> Recipe:
    """Return the recipe of a model. Tuples in the options become lists, because JSON has no tuples.

    Args:
        name: The name of the model.
        options: The options of the function that builds the model. A value that JSON cannot store raises an error.
    """
    json_options: dict[str, object] = {}
    for key, value in options.items():
        try:
            json_options[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"option {key} of model {name!r} is {value!r}, which a file cannot record. "
                "Give numbers, texts, booleans, None, or lists of them."
            ) from error
    return Recipe(name, json_options)


def attach_recipe(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Store the recipe on the model, and return the model.

    The recipe is a plain attribute of the model. It is neither a parameter nor a buffer. A copy of the model that
    ``deepcopy`` makes has the recipe too.
    """
    setattr(model, _ATTRIBUTE, recipe)
    return model


def recipe_of(model: nn.Module) -> Recipe | None:
    """Return the recipe of a model that ``build`` has built, or ``None`` for any other model.

    >>> print(recipe_of(nn.Linear(2, 2)))
    None
    """
    recipe = getattr(model, _ATTRIBUTE, None)
    return recipe if isinstance(recipe, Recipe) else None
