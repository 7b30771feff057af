"""The features of one sample are read off a dense layer, whatever comes after it, and the picture follows."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.attacks import feature_read_off
from leakgauge.attacks.analytic.feature_read_off import Body, fits
from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.analytic.cases import DIGITS, dense, people, table_network

ONE = DIGITS.share([3])


def tail(*layers, body=(), outputs=10):
    torch.manual_seed(0)
    first = (nn.Conv2d(1, 12, 3, padding=1), nn.Softplus(), *body)
    return nn.Sequential(*first, nn.Flatten(), *layers, nn.Linear(12 * 64, 32), nn.ReLU(), nn.Dropout(0.5),
                         nn.Linear(32, outputs))  # fmt: skip


def several_labels():
    labels = torch.nn.functional.one_hot(DIGITS.targets, 10).float()
    table = replace(DIGITS, targets=labels, spec=replace(DIGITS.spec, classes=None))
    return fedsgd(tail(), table.share([3]), recipe=LocalTraining(loss="binary_cross_entropy"))


CASES = {
    "dropout after the layer": lambda: fedsgd(tail(), ONE),
    "dropout before the layer": lambda: fedsgd(tail(nn.Dropout(0.5)), ONE),
    "several labels": several_labels,
    "local steps": lambda: fedavg(tail(), ONE, lr=0.001, epochs=3),
    "an unknown number of samples": lambda: fedsgd(tail(), ONE, hidden=["samples"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_picture_comes_back(name):
    observation, truth = CASES[name]()
    assert fits(observation).applies
    result = feature_read_off(steps=300, restarts=2)(observation)
    scored = score(result, truth)
    assert scored["psnr"].value > 25
    assert scored["psnr"].value > scored["psnr"].chance + 8
    if observation.data.classes is not None:
        assert torch.equal(result.labels, truth.targets)


def test_dropout_before_the_layer_scales_what_it_keeps():
    observation, _ = CASES["dropout before the layer"]()
    assert Body.of(observation, torch.double).gain == pytest.approx(2.0)
    assert Body.of(CASES["dropout after the layer"]()[0], torch.double).gain == 1.0


def test_noise_leaves_nothing_to_read():
    observation, _ = fedsgd(tail(), ONE)
    noisy = {name: value + 10 * value.std() * torch.randn_like(value) for name, value in observation.gradient.items()}
    result = feature_read_off(steps=5)(replace(observation, gradient=noisy))
    assert not len(result.samples)
    assert "no features could be read off" in result.outcome.sentence


def test_ctrl_c_returns_the_best_picture_so_far():
    def interrupt(step, total, loss):
        raise KeyboardInterrupt

    result = feature_read_off(steps=50)(fedsgd(tail(), ONE)[0], progress=interrupt)
    assert result.outcome.kind == "interrupted"
    assert len(result.samples) == 1


REFUSED = {
    "made for one sample": lambda: fedsgd(tail(), DIGITS.share([0, 1]))[0],
    "are too few to show a sample": lambda: fedsgd(
        nn.Sequential(nn.Conv2d(1, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10)), ONE
    )[0],
    "are random": lambda: fedsgd(tail(body=(nn.Dropout(0.5), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())), ONE)[0],
    "with a proof": lambda: fedsgd(nn.Sequential(nn.Conv2d(1, 6, 3), nn.Flatten(), nn.Linear(216, 10)), ONE)[0],
    "the sample enters a dense layer itself": lambda: fedsgd(dense(32, activation=nn.Dropout), ONE)[0],
    "this client uses Adam": lambda: fedavg(tail(), ONE, lr=0.001, epochs=2, recipe=LocalTraining(optimiser="adam"))[0],
    "no dense layer": lambda: fedsgd(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), ONE)[0],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    fit = fits(REFUSED[reason]())
    assert not fit.applies
    assert reason in fit.reason


def test_a_row_of_a_table_is_left_to_the_read_off():
    observation, _ = fedsgd(table_network(), people(20).share([0]))
    assert not fits(observation).applies


@pytest.mark.parametrize("option", ["steps", "lr", "restarts", "tv"])
def test_impossible_options_are_refused(option):
    with pytest.raises(InvalidInput, match="total variation" if option == "tv" else option):
        feature_read_off(**{option: -1})
