"""Samples of dense networks come back after several local steps, and the attack refuses in words where it cannot."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.attacks import local_spans
from leakgauge.attacks.analytic.local_spans import _distinct, fits
from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.analytic.cases import DIGITS, dense, people, table_network


def client(samples=6, network=None, digits=DIGITS, **options):
    recipe = {"lr": 0.02, "epochs": 2, "batch_size": 2, "seed": 0, **options}
    return fedavg(network or dense(96, 48), digits.share(range(samples)), **recipe)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh])
def test_all_samples_and_labels_come_back(activation):
    observation, truth = client(network=dense(96, 48, activation=activation))
    result = local_spans()(observation)
    scored = score(result, truth)
    assert float(scored["psnr"].per_sample.min()) > 25
    assert scored["label_errors"].value == 0
    assert "6 of 6 samples found" in result.outcome.sentence


@pytest.mark.parametrize("options", [{"momentum": 0.9, "lr": 0.005}, {"weight_decay": 0.01}, {"hidden": ["lr"]},
                                     {"hidden": ["samples"]}, {"hidden": ["batch_size"]}])  # fmt: skip
def test_the_recipe_may_be_unknown_or_another(options):
    observation, truth = client(**options)
    scored = score(local_spans()(observation), truth)
    assert float(scored["psnr"].per_sample.median()) > 25


def test_a_regression_gives_samples_without_targets():
    numbers = replace(DIGITS, targets=DIGITS.targets.float(), spec=replace(DIGITS.spec, classes=None))
    observation, truth = client(4, dense(96, 48, classes=1), numbers, recipe=LocalTraining(loss="mse"), lr=0.001)
    result = local_spans()(observation)
    assert result.labels is None
    assert float(score(result, truth)["psnr"].value) > 25


def test_mixtures_of_samples_are_not_returned():
    """Sums and differences of samples lie in the first span too."""
    observation, truth = client(6, lr=0.2, epochs=4)
    found = local_spans()(observation).samples
    nearest = torch.cdist(found.flatten(1), truth.inputs.flatten(1)).square().min(1).values / 64
    assert int((nearest > 0.02).sum()) <= 1


def test_a_point_that_repeats_a_better_one_is_left_out():
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.01, 0.0]])
    kept, residuals = _distinct(points, torch.tensor([0.3, 0.2, 0.1]))
    assert torch.equal(kept, torch.tensor([[1.01, 0.0], [0.0, 1.0]]))
    assert torch.equal(residuals, torch.tensor([0.1, 0.2]))


def test_ctrl_c_returns_the_samples_found_so_far():
    def interrupt(step, total, loss):
        raise KeyboardInterrupt

    result = local_spans(starts=24)(client()[0], progress=interrupt)
    assert result.outcome.kind == "interrupted"
    assert len(result.samples)


REFUSED = {
    "made for several local steps": lambda: fedsgd(dense(96, 48), DIGITS.share(range(4)))[0],
    "local_rows uses": lambda: client(4, table_network(), people(20))[0],
    "made for SGD": lambda: client(4, recipe=LocalTraining(optimiser="adam"), lr=0.001)[0],
    "has a single dense layer": lambda: client(4, dense())[0],
    "does not separate 12 samples": lambda: client(12, dense(96))[0],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    observation = REFUSED[reason]()
    fit = fits(observation)
    assert not fit.applies
    assert reason in fit.reason


def test_without_two_dense_layers_it_raises_the_reason():
    with pytest.raises(InvalidInput, match="has a single dense layer"):
        local_spans()(REFUSED["has a single dense layer"]())


@pytest.mark.parametrize("option", ["starts", "iterations", "attempts"])
def test_impossible_options_are_refused(option):
    with pytest.raises(InvalidInput, match=option):
        local_spans(**{option: 0})
