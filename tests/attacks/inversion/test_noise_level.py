"""The share of noise is known from the defence, or measured where a clean gradient must be zero."""

import pytest

from leakgauge import defences, models
from leakgauge.attacks.inversion.noise_level import measured_noise, noise_in
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits


def network():
    return models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[8, 16], dense=64, seed=0)


def message(*chain, **options):
    return fedsgd(network(), digits().share(range(4)), defences=chain, **options)[0]


@pytest.mark.parametrize("sigma", [0.003, 0.03, 0.3])
def test_measured_noise_is_the_noise_that_was_added(sigma):
    noisy, clean = flatten(message(defences.GaussianNoise(sigma)).gradient), flatten(message().gradient)
    added = float((noisy - clean).square().sum() / noisy.square().sum())
    assert measured_noise(message(defences.GaussianNoise(sigma))) == pytest.approx(added, rel=0.5)


def test_a_clean_message_has_no_noise():
    assert measured_noise(message()) == 0
    assert measured_noise(message(defences.Clipping(0.1))) == 0
    trained, _ = fedavg(network(), digits().share(range(4)), lr=0.05, epochs=3, batch_size=2)
    assert measured_noise(trained) == 0


def test_weight_decay_is_not_taken_for_noise():
    decayed, _ = fedavg(network(), digits().share(range(4)), lr=0.05, epochs=3, weight_decay=0.1)
    assert measured_noise(decayed) == 0


def test_adam_and_small_steps_are_not_taken_for_noise():
    recipe = LocalTraining(lr=0.001, epochs=2, batch_size=4, optimiser="adam")
    adam, _ = fedavg(network(), digits().share(range(4)), recipe=recipe)
    small, _ = fedavg(network(), digits().share(range(4)), lr=1e-4)
    assert (measured_noise(adam), measured_noise(small)) == (0, 0)


def test_missing_entries_are_not_noise():
    assert measured_noise(message(defences.TopK(0.1))) > 0
    assert noise_in(message(defences.TopK(0.1))) == 0


def test_a_message_that_is_all_noise_measures_as_such():
    assert measured_noise(message(defences.GaussianNoise(100.0))) > 0.5
    assert measured_noise(message(defences.Quantisation(2))) > 0.1


def test_a_known_defence_counts_before_the_measure():
    known = message(defences.GaussianNoise(0.03), knows_defence=True)
    assert noise_in(known) != measured_noise(known)
    assert noise_in(known) == pytest.approx(measured_noise(known), rel=0.5)
    assert noise_in(message(defences.GaussianNoise(0.03))) == measured_noise(known)
    assert noise_in(message(knows_defence=True)) == 0
