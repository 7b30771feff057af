"""The check whether a recipe explains a message: right recipes pass, and wrong ones are named."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import data, defences
from leakgauge.core.local_training import LocalTraining
from leakgauge.evaluation.recipe_causes import changes
from leakgauge.evaluation.recipe_check import check_recipe
from leakgauge.federation.client import fedavg, fedsgd

DIGITS = data.load("digits")
SPEC = replace(DIGITS.spec, mean=(0.3,), std=(0.35,))


def client(number):
    share = DIGITS.share(range(24 * number, 24 * (number + 1)), f"client {number}")
    return replace(share, spec=SPEC)


def network(norm=False, drop=0.0):
    torch.manual_seed(1)
    middle = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), *middle, nn.ReLU(), nn.Flatten(), nn.Dropout(drop), nn.Linear(36, 24), nn.ReLU(),
        nn.Linear(24, 10),
    )  # fmt: skip


def message(number=0, model=None, **settings):
    settings = {"lr": 0.05, "epochs": 2, "batch_size": 8, **settings}
    return fedavg(model or network(), client(number), **settings)


def without_order(truth):
    return replace(truth, order=())


@pytest.mark.parametrize("norm", [False, True])
def test_the_right_recipe_in_the_known_order_gives_the_same_message(norm):
    check = check_recipe(*message(model=network(norm=norm)))
    assert check.explained
    assert check.residual < 1e-6
    assert check.limit <= 0.011
    assert check.sentence.startswith("Training again with the recipe on the client's samples gives this update")


def test_one_gradient_is_checked_too():
    observation, truth = fedsgd(network(), client(0))
    assert check_recipe(observation, truth).residual < 1e-5
    wrong = replace(observation, data=replace(SPEC, mean=(0.0,), std=(1.0,)))
    assert check_recipe(wrong, truth).explained is False


RIGHT = {
    "several epochs": {"epochs": 5},
    "one batch": {"batch_size": 24},
    "batch norm": {"model": network(norm=True)},
    "Adam": {"lr": 0.001, "recipe": LocalTraining(optimiser="adam")},
    "noise": {"defences": defences.GaussianNoise(0.002)},
    "pruning": {"defences": defences.TopK(0.1)},
    "quantisation": {"defences": defences.build("quantisation", bits=4)},
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_recipes_pass_if_the_order_is_unknown(name):
    observation, truth = message(1, **RIGHT[name])
    check = check_recipe(observation, without_order(truth))
    assert check.explained, check.sentence


NONE = replace(SPEC, mean=(0.0,), std=(1.0,))
WRONG = {
    "the learning rate 0.05": ({}, {"lr": 0.025}),
    "inputs normalised": ({}, {"data": NONE}),
    "momentum 0.9": ({"momentum": 0.9, "lr": 0.01}, {"momentum": 0.0}),
    "Nesterov's momentum 0.9": (
        {"lr": 0.01, "recipe": LocalTraining(momentum=0.9, nesterov=True)}, {"nesterov": False},
    ),
    "weight decay 0.01": ({"weight_decay": 0.01}, {"weight_decay": 0.0}),
    "the optimiser adam": ({"lr": 0.001, "recipe": LocalTraining(optimiser="adam")}, {"optimiser": "sgd"}),
    "a proximal term of 1.0": ({"recipe": LocalTraining(proximal=1.0)}, {"proximal": 0.0}),
    "the learning-rate schedule cosine": ({"recipe": LocalTraining(schedule="cosine")}, {"schedule": "constant"}),
    "clipped to the norm 0.5": ({"recipe": LocalTraining(clip_norm=0.5)}, {"clip_norm": 0.0}),
    "label smoothing 0.1": ({"recipe": LocalTraining(label_smoothing=0.1)}, {"label_smoothing": 0.0}),
    "a model in eval mode": ({"mode": "eval", "model": network(norm=True)}, {"mode": "train"}),
}  # fmt: skip


@pytest.mark.parametrize("cause", WRONG)
def test_wrong_recipes_are_named(cause):
    settings, told = WRONG[cause]
    observation, truth = message(**settings)
    check = check_recipe(observation.knowing(**told), truth)
    assert check.explained is False
    assert len(check.causes) == 1
    assert cause in check.causes[0]
    assert check.residual_of_causes < 0.5 * check.residual
    assert "The recipe does not explain this update" in check.sentence


UNORDERED = [name for name in WRONG if name.startswith(("inputs", "momentum", "the optim"))]


@pytest.mark.parametrize("cause", UNORDERED)
def test_large_mistakes_are_named_without_the_order(cause):
    settings, told = WRONG[cause]
    observation, truth = message(**settings)
    check = check_recipe(observation.knowing(**told), without_order(truth))
    assert check.explained is False
    assert cause in check.causes[0]


def test_a_setting_that_is_unknown_is_found_and_no_mistake():
    observation, truth = message()
    for known in (truth, without_order(truth)):
        check = check_recipe(observation.knowing(lr=None), known)
        assert check.explained
        assert check.causes[0].startswith("the learning rate 0.0")
        assert "which it does not hold" in check.sentence


def test_several_mistakes_are_named_together():
    observation, truth = message(momentum=0.9, weight_decay=0.1, lr=0.01)
    check = check_recipe(observation.knowing(momentum=0.0, weight_decay=0.0), truth)
    assert set(check.causes) == {"momentum 0.9", "weight decay 0.1"}


def test_the_samples_of_another_client_are_recognised():
    observation, _ = message(0)
    others = {f"client {number}": without_order(message(number)[1]) for number in (0, 2)}
    mistaken = without_order(message(1)[1])
    check = check_recipe(observation, mistaken, others)
    assert check.explained is False
    assert check.causes == ("the samples of 'client 0'",)
    alone = check_recipe(observation, mistaken)
    assert alone.explained is False
    assert not alone.causes
    assert "Check that the samples are this client's" in alone.sentence


def test_an_order_that_changes_everything_is_named_and_not_called_right():
    observation, truth = message(model=network(drop=0.7), lr=0.2)
    check = check_recipe(observation, without_order(truth))
    assert check.explained is None
    assert check.sentence.startswith("The recipe was not checked: the order of the samples and masks of dropout change")


def test_a_last_batch_that_is_left_out_is_tried():
    observation, truth = message(batch_size=10, epochs=1)
    tried = {change.words: change for change in changes(observation.training, SPEC, truth, 1.0, observation, {})}
    assert tried["a last batch that is left out"].changed["training"].steps == 2


def test_a_clipped_update_is_no_other_recipe():
    observation, truth = message(defences=defences.Clipping(0.01, on="update"))
    check = check_recipe(observation, truth)
    assert check.explained is False
    assert "as clipping or another learning rate leaves it" in check.sentence


def test_messages_that_cannot_be_checked_have_a_reason():
    observation, truth = message()
    for changed, words in (
        (replace(observation, client="sum of 3 clients"), "a sum of several clients"),
        (replace(observation, defences=("GaussianNoise(0.1)",)), "GaussianNoise"),
        (replace(observation, returned=observation.sent), "the update is zero"),
    ):
        check = check_recipe(changed, truth)
        assert check.explained is None
        assert words in check.sentence
