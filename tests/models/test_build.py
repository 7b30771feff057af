"""build(): recipes, users' factories, and its error messages."""

import copy
import json
import sys

import pytest
import torch
from torch import nn

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.models import Recipe, build, recipe_of

USERS_MODULE = """
import torch
from torch import nn

not_a_factory = 3
ready = nn.Linear(2, 2)

def linear(inputs=4, *, outputs: int = 2, sizes=()):
    model = nn.Linear(inputs, outputs)
    model.sizes = sizes
    return model

def anything(**options):
    return nn.Linear(options["inputs"], 2)

def needs(inputs):
    return nn.Linear(inputs, 2)

def broken():
    raise RuntimeError("no weights today")

def number():
    return 7

def _private():
    return nn.Linear(1, 1)

class Network(nn.Linear):
    pass
"""


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    """A module in the current directory, which is not on the import path."""
    name = "users_networks"
    (tmp_path / f"{name}.py").write_text(USERS_MODULE, encoding="utf-8")
    (tmp_path / "needs_absent.py").write_text("import a_package_nobody_has\n", encoding="utf-8")
    (tmp_path / "has_a_typo.py").write_text("def f(:\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_recipe_survives_json_and_deepcopy():
    model = build("mlp", shape=(4,), hidden=(8, 8), classes=3, seed=1)
    recipe = recipe_of(copy.deepcopy(model))
    assert recipe == Recipe("mlp", {"shape": [4], "hidden": [8, 8], "classes": 3, "seed": 1})
    assert recipe is not None
    again = build(recipe.name, **json.loads(json.dumps(recipe.options)))
    assert recipe_of(again) == recipe
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_recipe_is_neither_parameter_nor_buffer():
    model = build("mlp", hidden=())
    assert set(model.state_dict()) == {"head.weight", "head.bias"}
    assert set(dict(model.named_buffers())) == set()


def test_a_model_made_otherwise_has_no_recipe():
    assert recipe_of(nn.Linear(1, 1)) is None


def test_options_that_no_file_can_hold_are_refused():
    with pytest.raises(InvalidInput, match="option activation of model 'lenet'"):
        build("lenet", activation=nn.ReLU)
    with pytest.raises(InvalidInput, match="cannot record"):
        build("mlp", seed=float("nan"))


def test_unknown_model_suggests_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'resnet18'"):
        build("resnet81")


def test_unknown_option_lists_the_valid_ones():
    with pytest.raises(UnknownName, match=r"'colour' .*known: activation, classes, initialisation, seed, shape"):
        build("lenet", colour="red")


def test_users_factory(users_module):
    path = list(sys.path)
    model = build(f"{users_module}:linear", inputs=3, sizes=[1, [2, 3]])
    assert isinstance(model, nn.Linear)
    assert model.in_features == 3
    assert model.sizes == (1, (2, 3))
    assert recipe_of(model) == Recipe(f"{users_module}:linear", {"inputs": 3, "sizes": [1, [2, 3]]})
    assert sys.path == path


def test_users_class_and_open_options(users_module):
    assert build(f"{users_module}:Network", in_features=2, out_features=5).out_features == 5
    assert build(f"{users_module}:anything", inputs=6).in_features == 6


def test_seed_for_a_factory_without_one(users_module):
    build(f"{users_module}:linear")  # importing the module draws random weights
    before = torch.get_rng_state()
    first, second = (build(f"{users_module}:linear", seed=5).state_dict() for _ in range(2))
    assert torch.equal(first["weight"], second["weight"])
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(InvalidInput, match="seed must be a whole number"):
        build(f"{users_module}:linear", seed="five")


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("absent_module:linear", {}, InvalidInput, "no module 'absent_module'.*current directory"),
        ("users_networks.inner:linear", {}, InvalidInput, "no module 'users_networks.inner'"),
        ("needs_absent:linear", {}, InvalidInput, "imports 'a_package_nobody_has', which is not installed"),
        ("has_a_typo:f", {}, InvalidInput, "raised SyntaxError"),
        ("users_networks:lineal", {}, UnknownName, "did you mean 'linear'"),
        ("users_networks:not_a_factory", {}, InvalidInput, "is a int, not a factory"),
        ("users_networks:ready", {}, InvalidInput, "Name a function that returns the model"),
        ("users_networks:broken", {}, InvalidInput, "raised RuntimeError: no weights today"),
        ("users_networks:number", {}, InvalidInput, "returned a int"),
        ("users_networks:needs", {}, InvalidInput, "needs the option inputs"),
        ("users_networks:linear", {"output": 3}, UnknownName, "did you mean 'outputs'.*inputs, outputs"),
        ("users_networks:", {}, InvalidInput, "'module:factory'"),
        (":linear", {}, InvalidInput, "'module:factory'"),
        ("users-networks:linear", {}, InvalidInput, "'module:factory'"),
    ],
)
def test_errors(users_module, name, options, kind, words):
    with pytest.raises(kind, match=words):
        build(name, **options)
