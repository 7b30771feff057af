"""Scenarios as documents: mistakes are named with their table and key before any work starts."""

import copy

import pytest

from leakgauge import defences
from leakgauge.core.errors import InvalidInput
from leakgauge.workflows.scenario_document import read_chain, read_scenario

DOCUMENT = {
    "model": {"name": "mlp", "options": {"shape": [1, 8, 8], "classes": 10, "hidden": [8]}},
    "data": {"name": "digits"},
    "training": {"samples": 4, "lr": 0.1, "epochs": 2, "batch_size": 2},
}


def setup(**changes):
    return read_scenario(copy.deepcopy(DOCUMENT) | changes, "audit.toml")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimiser": "adamm"}, r"\[training\] there is no optimiser 'adamm'; did you mean 'adam"),
        ({"schedule": "cosin"}, r"\[training\] there is no schedule 'cosin'; did you mean 'cosine'"),
        ({"nesterov": True}, r"\[training\] Nesterov's momentum needs a momentum above 0"),
        ({"clip_norm": "much"}, "clip_norm must be a finite number"),
        ({"betas": [0.9]}, "betas must be two numbers"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_before_any_work(settings, words):
    training = {"sends": "weights", "samples": 4, "lr": 0.1}
    with pytest.raises(InvalidInput, match=words):
        setup(training=training | settings)


WRONG = [
    ({"models": {}}, "table in audit.toml called 'models'; did you mean 'model'"),
    ({"model": {}}, r"\[model\] needs a name"),
    ({"data": {}}, r"\[data\] needs one of name, images, npz, csv, factory, not none"),
    ({"data": {"name": "digits", "npz": "a.npz"}}, "not name and npz"),
    ({"data": {"name": 3}}, r"\[data\] name must be of type str"),
    ({"training": {"learning_rate": 0.1}}, r"key in audit.toml: \[training\] called 'learning_rate'"),
    ({"training": {"lr": "0.1"}}, "lr must be a finite number"),
    ({"training": {"epochs": True}}, "epochs must be a whole number"),
    ({"training": {"sends": "both"}}, r"\[training\] sends.*'both'"),
    ({"model": {"name": "mlp", "trained_rounds": -1}}, "trained_rounds must be a whole number of at least 0"),
    ({"training": []}, r"\[training\] must be a table"),
    ({"attacker": {"granted": ["label"]}}, "'label'; did you mean 'labels'"),
    ({"attacker": {"hidden": ["labels"]}}, "hidden"),
    ({"seed": 1.5}, "seed must be a whole number"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_mistakes_are_named_with_their_table_and_key(changes, words):
    with pytest.raises(InvalidInput, match=words):
        setup(**changes)


def test_chains_are_read_and_named_when_wrong():
    chain = read_chain([{"name": "clipping", "norm": 1.0}, {"name": "top_k", "keep": 0.1}], "here")
    assert chain == (defences.Clipping(1.0), defences.TopK(0.1))
    for wrong in ("noise", [{"sigma": 1}], [3]):
        with pytest.raises(InvalidInput, match="here must be a list of tables"):
            read_chain(wrong, "here")
    with pytest.raises(InvalidInput, match=r"here: .*at least 0"):
        read_chain([{"name": "gaussian_noise", "sigma": -1}], "here")
