"""The client's message, computed again from a rebuilt sample."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import data, models
from leakgauge.attacks.analytic import replay as module
from leakgauge.attacks.analytic.replay import label_of_one, replay, work_of_gradient
from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences.clipping import Clipping

DIGITS = data.load("digits")


def network(bias=True, classes=10):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.GELU(), nn.Linear(24, classes, bias=bias))


def replayed(observation, truth, error=0.0):
    wrong = truth.inputs + error * torch.randn(truth.inputs.shape, generator=torch.Generator().manual_seed(0))
    return replay(observation, observation.data.normalise(wrong))


RECIPES = [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"clip_norm": 0.5}, {"label_smoothing": 0.1}]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("epochs", [1, 4])
def test_the_true_sample_gives_the_message_and_another_does_not(recipe, epochs):
    case = fedavg(network(), DIGITS.share([3]), lr=0.1, epochs=epochs, recipe=LocalTraining(**recipe))
    check = replayed(*case)
    assert check.agrees
    assert check.residual < 1e-5
    assert "a replay gives the same message" in str(check)
    wrong = replayed(*case, error=0.05)
    assert not wrong.agrees
    assert "a replay gives another message" in str(wrong)


def test_a_gradient_is_replayed_up_to_a_factor():
    for defences in ((), (Clipping(0.01),)):
        case = fedsgd(network(), DIGITS.share([3]), defences=defences)
        assert replayed(*case).residual < 1e-5
        assert not replayed(*case, error=0.01).agrees


def test_the_opposite_message_does_not_agree():
    observation, truth = fedsgd(network(), DIGITS.share([3]))
    opposite = replace(observation, gradient={name: -value for name, value in observation.gradient.items()})
    assert not replayed(opposite.knowing(labels=truth.targets), truth).agrees


@pytest.mark.parametrize("number", [0, 4, 9])
def test_labels_are_read_with_and_without_a_bias(number):
    for bias in (True, False):
        observation, truth = fedsgd(network(bias), DIGITS.share([number]))
        assert torch.equal(label_of_one(observation), truth.targets)


def test_two_classes_without_a_bias_are_told_apart_by_the_replay():
    for number in (0, 1):
        torch.manual_seed(0)
        share = DIGITS.share([number])
        spec = replace(share.spec, classes=2)
        two = replace(share, spec=spec, targets=torch.tensor([number]), population=None, rows=None)
        observation, truth = fedsgd(network(bias=False, classes=2), two)
        assert label_of_one(observation) is None
        check = replayed(observation, truth)
        assert check.agrees
        assert torch.equal(check.label, truth.targets)


def test_what_cannot_be_replayed_has_a_reason_and_is_not_held_against_the_sample():
    dropped = nn.Sequential(network(), nn.Dropout(0.5), nn.Linear(10, 10))
    patients = data.load("diabetes").share([0])
    regression = models.mlp(shape=patients.spec.shape, classes=1, hidden=(16,), seed=0)
    for case, reason in (
        (fedsgd(dropped, DIGITS.share([0]), mode="train"), "its dropout is random"),
        (fedavg(network(), DIGITS.share([0]), lr=0.1, hidden=["lr"]), "the client's lr is unknown"),
        (fedsgd(regression, patients, loss="mse"), "the label of the sample is unknown"),
    ):
        check = replayed(*case)
        assert check.agrees
        assert str(check) == f"not checked by a replay, since {reason}"


def test_long_trainings_of_large_models_are_not_replayed(monkeypatch):
    case = fedavg(network(), DIGITS.share([0]), lr=0.01, epochs=3)
    work = work_of_gradient(case[0])
    assert 3 * (64 * 24 + 24 * 10) <= work <= 4 * (64 * 24 + 24 * 10)
    assert replayed(*case).message is not None
    monkeypatch.setattr(module, "MOST_WORK", 2 * work)
    check = replayed(*case)
    assert check.message is None
    assert "the local steps need" in check.reason
