"""The recipes of CONTRIBUTING.md work as they are printed."""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import leakgauge as lg
from leakgauge.testing import check_attack

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()


@pytest.fixture
def recipe(request, monkeypatch):
    """The module that a recipe shows, under a name of its own."""
    code = re.search(rf"^## {request.param}$.*?^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[1]
    module = ModuleType(request.param.lower().replace(" ", "_"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, vars(module))
    return module


@pytest.mark.parametrize("recipe", ["Add an attack"], indirect=True)
def test_attack(recipe):
    assert recipe.SPEC.name == recipe.SPEC.factory.__name__
    check_attack(recipe.SPEC.factory(steps=100))
    assert {"steps", "lr", "restarts"} <= set(inspect.signature(recipe.SPEC.factory).parameters)  # the tests set these


@pytest.mark.parametrize("recipe", ["Add a defence"], indirect=True)
def test_defence(recipe):
    defence = recipe.SignOnly(scale=0.5, on="update")
    assert recipe.SignOnly.name == "sign_only"
    client = lg.data.load("digits").share(range(4))
    observation, _ = lg.fedsgd(lg.models.build("lenet", shape=(1, 8, 8), seed=0), client, defences=(defence,))
    assert all(set(value.abs().unique().tolist()) <= {0.0, 0.5} for value in observation.gradient.values())
    with pytest.raises(lg.errors.InvalidInput, match="scale of signs"):
        recipe.SignOnly(scale=0)


@pytest.mark.parametrize("recipe", ["Add a dataset"], indirect=True)
def test_dataset(recipe):
    wine = recipe.SOURCE.loader()
    assert (len(wine), tuple(wine.inputs.shape), recipe.SOURCE.name) == (178, (178, 13), wine.name)


@pytest.mark.parametrize("recipe", ["Add a model"], indirect=True)
def test_model(recipe):
    (factory,) = recipe.NETWORKS
    first, again = factory(seed=3), factory(seed=3)
    inputs = torch.zeros(2, 1, 28, 28)
    assert torch.equal(first(inputs), again(inputs))
    assert first(inputs).shape == (2, 10)
