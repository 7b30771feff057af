"""The table of all networks, and the function that builds a network by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from leakgauge.core.discovery import modules_of
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.files import machine_memory
from leakgauge.core.option_check import check_options
from leakgauge.models.factories import call_factory, current_directory_importable, find_factory, signature_of
from leakgauge.models.recipe import attach_recipe, make_recipe

#: A network with a larger number in its options is measured before it is built.
LARGE = 10_000
#: The number of copies of a network that training and an attack need at least.
COPIES = 4


def discover() -> dict[str, Callable[..., nn.Module]]:
    """Return a dictionary from the names of all networks to the functions that build them.

    Each module of this package lists its functions in a tuple ``NETWORKS``.
    """
    factories: dict[str, Callable[..., nn.Module]] = {}
    for module in modules_of("leakgauge.models", without=__name__):
        for factory in getattr(module, "NETWORKS", ()):
            if factories.setdefault(factory.__name__, factory) is not factory:
                raise ValueError(f"{module.__name__} declares a second network called {factory.__name__!r}")
    return factories


MODELS: dict[str, Callable[..., nn.Module]] = discover()
"""A dictionary from the names of all networks to their factories."""


def build(name: str, **options: object) -> nn.Module:
    """Build the model with the given name.

    :func:`~leakgauge.models.recipe_of` returns the name and the options of the built model.

    Lists in the options become tuples, so that options from Python and from a JSON file have the same values.

    Args:
        name: A name from :data:`MODELS`, or ``"module:factory"`` for a function in your own module. Your module must be
            installed, or it must be a file in the current directory.
        options: The keyword arguments of the function that builds the model. A ``seed`` makes the initial weights
            reproducible, even if your own function has no argument ``seed``.

    >>> from leakgauge.models import recipe_of
    >>> model = build("lenet", shape=(1, 28, 28), classes=62, seed=0)
    >>> recipe_of(model)
    Recipe(name='lenet', options={'shape': [1, 28, 28], 'classes': 62, 'seed': 0})
    """
    recipe = make_recipe(name, options)
    if name in MODELS:
        check_options(f"model {name!r}", MODELS[name], recipe.options)
    with current_directory_importable():
        if name in MODELS and _largest(recipe.options) > LARGE:
            _check_memory(name, recipe.options)
        model = call_factory(name, _factory(name), recipe.options)
    return attach_recipe(model, recipe)


def _largest(option: object) -> float:
    """Return the largest number in an option, which may hold lists."""
    if isinstance(option, Mapping):
        option = list(option.values())
    if isinstance(option, Sequence) and not isinstance(option, str):
        return max(map(_largest, option), default=0.0)
    return option if isinstance(option, (int, float)) else 0.0


def _check_memory(name: str, options: Mapping[str, object]) -> None:
    """Raise an error if training a network of Leakgauge would need more memory than the machine has."""
    with torch.device("meta"):  # no memory is used
        outline = call_factory(name, MODELS[name], {key: value for key, value in options.items() if key != "seed"})
    count = sum(value.numel() for value in outline.parameters())
    if COPIES * 4 * count > machine_memory():
        raise InvalidInput(
            f"the model {name!r} has {count:,} parameters with these options, more than this machine has memory for. "
            "Use smaller options"
        )


def parameters(name: str) -> tuple[str, ...]:
    """Return the names of the options of a model, as they can be passed to :func:`build`.

    >>> parameters("lenet")[:2]
    ('shape', 'classes')
    """
    with current_directory_importable():
        return tuple(signature_of(_factory(name)) or ())


def _factory(name: str) -> Callable[..., nn.Module]:
    if ":" in name:
        return find_factory(name)
    if name not in MODELS:
        raise UnknownName("model", name, [*MODELS, "module:factory"])
    return MODELS[name]
