"""Twenty kinds of clients are recorded such that a replay gives the same message, or refused in a sentence."""

import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from leakgauge.evaluation.recipe_check import check_recipe

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "recording" / "clients.py"
CLIENTS = (
    "SGD", "momentum 0.9", "weight decay 0.01", "Nesterov", "Adam", "AdamW", "StepLR", "cosine", "FedProx",
    "FedAdam (the server's optimiser)", "batch norm", "batch norm without its statistics", "head only",
    "prefixes of wrappers", "parameters only, without names", "gradients clipped to 0.5",
)  # fmt: skip
#: The clients that are not replayed exactly, with words of the reason.
OTHERS = {"FedBN": "lack '1.weight'", "dropout": "masks of dropout", "bfloat16": "", "LoRA by peft": ""}
#: The wrong recipes.
WRONG = (
    "half the learning rate", "no normalisation", "momentum taken for 0", "weight decay taken for 0",
    "Nesterov taken for plain momentum", "Adam taken for SGD", "cosine taken for a constant rate",
    "FedProx taken for FedAvg", "clipping left out", "one epoch for two", "batches of 8 for 4",
    "another client's samples",
)  # fmt: skip


@cache
def script():
    return runpy.run_path(str(SCRIPT))


def recorded(name, folder):
    return script()["record"](script()["CLIENTS"][name], folder)


def test_the_tables_have_all_clients():
    assert set(CLIENTS) | set(OTHERS) == set(script()["CLIENTS"])
    assert set(WRONG) == set(script()["WRONG"])


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_recorded_and_replayed_exactly(name, tmp_path):
    observation, truth, said = recorded(name, tmp_path)
    assert said == []
    check = check_recipe(observation, truth)
    assert check.explained
    assert check.residual < 1e-5
    assert check.limit == 0.01  # the order is known


@pytest.mark.parametrize("name", [name for name, words in OTHERS.items() if words])
def test_what_cannot_be_replayed_has_a_sentence(name, tmp_path):
    observation, truth, said = recorded(name, tmp_path)
    sentence = said[0] if observation is None else check_recipe(observation, truth).sentence
    assert OTHERS[name] in sentence


def test_rough_numbers_are_replayed_up_to_their_rounding(tmp_path):
    check = check_recipe(*recorded("bfloat16", tmp_path)[:2])
    assert check.explained
    assert 1e-4 < check.residual < check.limit < 0.3


@pytest.mark.long
def test_adapters_of_peft_are_recorded_and_replayed(tmp_path):
    pytest.importorskip("peft")
    observation, truth, said = recorded("LoRA by peft", tmp_path)
    assert said == []
    assert check_recipe(observation, truth).residual < 1e-5


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_recipe_is_named_with_its_cause(name):
    check = script()["check_wrong"](name)
    assert check.explained is False
    assert script()["WRONG"][name][2] in " and ".join(check.causes)


#: The settings that a server does not know if nobody tells it.
NOT_SAID = dict.fromkeys(
    ("optimiser", "momentum", "weight_decay", "nesterov", "dampening", "betas", "eps", "schedule", "clip_norm",
     "proximal", "label_smoothing", "accumulation"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("client", "settings", "cause"),
    [
        ("SGD", {"lr": 0.025}, "the learning rate 0.05"),
        ("SGD", {"epochs": 1}, "4 batches of 4, as the client trained on them"),
        ("momentum 0.9", {}, "momentum 0.9"), ("Adam", {}, "the optimiser adam"),
        ("gradients clipped to 0.5", {}, "gradients that are clipped to the norm 0.5"),
    ],
)  # fmt: skip
def test_a_mistake_beside_unknown_settings_is_told_from_them(client, settings, cause, tmp_path):
    observation, truth, _ = recorded(client, tmp_path)
    check = check_recipe(_with(observation, settings), truth)
    assert check.causes == (cause,)
    assert check.explained is (not settings)  # a setting that is unknown is no mistake
    assert check.residual_of_causes < 1e-5


def _with(observation, settings):
    return replace(observation, training=replace(observation.training, **{**NOT_SAID, **settings}))
