"""Features before an output layer are solved for exactly, and pictures are then searched for one by one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.attacks import dense_output_features
from leakgauge.attacks.analytic import output_features
from leakgauge.attacks.analytic.output_features import fits
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import score
from leakgauge.federation.client import fedsgd
from tests.attacks.analytic.cases import DIGITS, client, dense


def convolutional(*, norm=False, activation=nn.ReLU):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 12, 3, padding=1), *([nn.BatchNorm2d(12)] if norm else []), activation(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 16, 10))


@pytest.mark.parametrize("rows", [[0], [0, 10, 1, 2], [*range(8), 11]])
def test_pictures_come_back_with_their_labels(rows):
    observation, truth = fedsgd(convolutional(activation=nn.Softplus), DIGITS.share(rows))
    assert fits(observation).applies
    result = dense_output_features(restarts=1)(observation)
    scored = score(result, truth)
    assert scored["psnr"].value > 30
    assert scored["label_errors"].value == 0


def test_wrong_labels_noise_and_copies_are_no_proof():
    observation, truth = client(convolutional(), 4)
    wrong = observation.knowing(labels=(truth.targets + 1) % 10)
    gradient = {
        name: value + 0.1 * value.std() * torch.randn_like(value) for name, value in observation.gradient.items()
    }
    for changed in (wrong, replace(observation, gradient=gradient)):
        result = dense_output_features(steps=5)(changed)
        assert tuple(result.samples.shape) == (0, 1, 8, 8)
        assert str(result.outcome).startswith("no features could be proven")


def test_one_wrong_inferred_label_is_corrected(monkeypatch):
    observation, truth = fedsgd(convolutional(activation=nn.Softplus), DIGITS.share([0, 10, 1, 2]))
    inferred = truth.targets.clone()
    inferred[0] = (inferred[0] + 5) % 10
    monkeypatch.setattr(output_features.LastLayer, "__call__", lambda *_: inferred)
    labels = list(output_features._likely_labels(observation, torch.Generator().manual_seed(0)))
    assert torch.equal(labels[0], inferred)
    assert sorted(labels[1].tolist()) == sorted(truth.targets.tolist())
    assert len({tuple(sorted(one.tolist())) for one in labels}) == len(labels)
    result = dense_output_features(restarts=1, steps=100)(observation)
    assert sorted(result.labels.tolist()) == sorted(truth.targets.tolist())


def test_granted_labels_are_not_doubted():
    observation, truth = client(convolutional(), 4, granted=["labels"])
    labels = list(output_features._likely_labels(observation, torch.Generator().manual_seed(0)))
    assert len(labels) == 1
    assert torch.equal(labels[0], truth.targets)


def test_ctrl_c_returns_the_best_pictures_so_far():
    observation, _ = client(convolutional(), 3)

    def interrupt(step, total, loss):
        if step == 3:
            raise KeyboardInterrupt

    result = dense_output_features(steps=50)(observation, progress=interrupt)
    assert result.outcome.kind == "interrupted"
    assert len(result.samples) == 3


def hidden_smoothing():
    observation, _ = client(convolutional(), 4)
    return replace(observation, training=replace(observation.training, label_smoothing=None))


REFUSED = {
    "the number of samples is unknown": lambda: client(convolutional(), 4, hidden=["samples"])[0],
    "separates fewer than 10 samples": lambda: client(convolutional(), 10)[0],
    "is not the output of the model": lambda: client(dense(32), 4)[0],
    "the features mix the samples of a batch": lambda: client(convolutional(norm=True), 4)[0],
    "made for cross-entropy": hidden_smoothing,
    "no dense layer": lambda: client(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), 2)[0],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    fit = fits(REFUSED[reason]())
    assert not fit.applies
    assert reason in fit.reason


@pytest.mark.parametrize("option", ["steps", "lr", "starts", "iterations", "restarts"])
def test_impossible_options_are_refused(option):
    with pytest.raises(InvalidInput, match=option):
        dense_output_features(**{option: 0})
