"""The papers' networks, and :func:`build`, which makes one of them (or a user's own) by name.

Every network takes ``shape`` (one sample's), ``classes`` (its outputs) and ``seed``, ends in a linear layer
called ``head``, and has no in-place operations, because attacks differentiate it twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from leakgauge.core.errors import UnknownName
from leakgauge.models.cnn import dlf_cifar100, dlf_femnist
from leakgauge.models.factories import call_factory, current_directory_importable, find_factory
from leakgauge.models.lenet import lenet
from leakgauge.models.mlp import mlp
from leakgauge.models.recipe import Recipe, attach_recipe, make_recipe, recipe_of
from leakgauge.models.resnet import resnet18, resnet20, resnet20_4

__all__ = [
    "MODELS",
    "Recipe",
    "build",
    "dlf_cifar100",
    "dlf_femnist",
    "lenet",
    "mlp",
    "parameters",
    "recipe_of",
    "resnet18",
    "resnet20",
    "resnet20_4",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet": lenet,
    "dlf_femnist": dlf_femnist,
    "dlf_cifar100": dlf_cifar100,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet20_4": resnet20_4,
    "mlp": mlp,
}


def build(name: str, **options: object) -> nn.Module:
    """Make a model: one of :data:`MODELS`, or ``"module:factory"`` from a user's importable module.

    Modules in the current directory can be imported too. The factory sees lists as tuples, so that it gets
    the same values whether they come from Python or from a JSON file. A ``seed`` makes the initial weights
    reproducible even if a user's factory has no such option. The model remembers how it was made
    (:func:`recipe_of`).

    >>> model = build("lenet", shape=(1, 28, 28), classes=62, seed=0)
    >>> recipe_of(model)
    Recipe(name='lenet', options={'shape': [1, 28, 28], 'classes': 62, 'seed': 0})
    """
    recipe = make_recipe(name, options)
    with current_directory_importable():
        model = call_factory(name, _factory(name), recipe.options)
    return attach_recipe(model, recipe)


def parameters(name: str) -> tuple[str, ...]:
    """The names of the options that a model's factory takes.

    >>> parameters("lenet")[:2]
    ('shape', 'classes')
    """
    with current_directory_importable():
        return tuple(inspect.signature(_factory(name)).parameters)


def _factory(name: str) -> Callable[..., nn.Module]:
    if ":" in name:
        return find_factory(name)
    if name not in MODELS:
        raise UnknownName("model", name, [*MODELS, "module:factory"])
    return MODELS[name]
