"""L-BFGS through the simulated local training: where it applies, and what it finds."""

from dataclasses import replace

import pytest
from torch import nn

from leakgauge import data, models
from leakgauge.attacks import epafl, lbfgs_simulation
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.attacks.papers.lbfgs_simulation import smooth_and_small
from leakgauge.evaluation import pair, psnr
from leakgauge.federation.client import fedavg, fedsgd


def message(rows, *, lr=0.1, activation="sigmoid", **recipe):
    model = models.lenet(shape=(1, 8, 8), seed=0, activation=activation)
    own = data.load("digits").share(rows)
    return fedavg(model, own, lr=lr, **recipe) if recipe else fedsgd(model, own)


def test_it_is_epafl_through_the_simulation():
    attack = lbfgs_simulation(steps=9, patience=3, retries=1)
    other = epafl(steps=9, patience=3, retries=1, relative=True)
    assert attack.matching == replace(other.matching, update_model=FullSimulation(new_orders=True))
    assert (attack.descent, attack.effort.retries) == (other.descent, 1)


@pytest.mark.parametrize("epochs", [1, 2])
def test_one_sample_comes_back_from_local_steps(epochs):
    observation, truth = message([11], epochs=epochs, batch_size=1)
    result = lbfgs_simulation(retries=2)(observation, progress=False)
    assert result.outcome.kind == "converged"
    assert psnr(result.samples, truth.inputs).item() > 50


@pytest.mark.parametrize("lr", [pytest.param(0.01, marks=pytest.mark.long), 0.1])
def test_several_samples_and_their_labels_come_back_from_two_epochs_of_batches(lr):
    observation, truth = message(range(30, 33), lr=lr, epochs=2, batch_size=2)
    attack = lbfgs_simulation(steps=6, pool=3)
    result = attack(observation, progress=False)
    matched = pair(result.samples, truth.inputs).apply(result.samples)
    assert (psnr(matched, truth.inputs) > 20).double().mean().item() > 0.6
    assert sorted(result.labels.tolist()) == sorted(truth.targets.tolist())


def test_it_applies_to_small_smooth_networks_for_gradients_and_local_training():
    for observation, _ in (message([0]), message([0, 1], epochs=2, batch_size=1)):
        assert smooth_and_small(observation).applies
        assert "smooth and small" in smooth_and_small(observation).reason


def test_it_is_refused_in_words():
    kinked = smooth_and_small(message([0], activation="relu")[0])
    assert (kinked.applies, kinked.reason) == (False, "made for smooth networks, and this one has ReLU")
    own = data.load("digits").share([0])
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 2000), nn.Tanh(), nn.Linear(2000, 10))
    assert smooth_and_small(fedsgd(wide, own)[0]).applies
    long = smooth_and_small(fedavg(wide, own, lr=0.1, epochs=2000)[0])
    assert not long.applies
    assert "296 million multiplications, and the limit is 250 million" in long.reason
    hidden, _ = fedavg(wide, own, lr=0.1, epochs=2, hidden=["lr"])
    assert "learning rate" in smooth_and_small(hidden).reason
