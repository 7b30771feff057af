"""Coordinates of samples, which are few if a dense layer's update spans the samples."""

import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks.analytic.coordinates import coordinates_of
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences.noise import GaussianNoise

DIGITS = data.load("digits")


def network():
    return models.mlp(shape=(1, 8, 8), classes=10, hidden=(48, 24), seed=0)


def messages():
    yield fedsgd(network(), DIGITS.share(range(4)))
    yield fedavg(network(), DIGITS.share(range(4)), lr=0.05, epochs=2, batch_size=2)


@pytest.mark.parametrize(("observation", "truth"), list(messages()))
def test_every_sample_lies_in_the_span(observation, truth):
    coordinates = coordinates_of(observation)
    assert coordinates.count == 3
    samples = observation.data.normalise(truth.inputs).double().flatten(1) - coordinates.origin
    fitted = samples @ torch.linalg.pinv(coordinates.basis)
    rebuilt = coordinates.inputs(fitted).flatten(1)
    assert float((rebuilt - coordinates.origin - samples).norm()) < 1e-3 * float(samples.norm())


@pytest.mark.parametrize(
    "observation",
    [
        fedsgd(models.lenet(shape=(1, 8, 8), seed=0), DIGITS.share([0]))[0],
        fedsgd(network(), DIGITS.share(range(4)), defences=GaussianNoise(sigma=0.01))[0],
        fedavg(network(), DIGITS.share(range(4)), lr=0.05, epochs=2, weight_decay=0.1)[0],
    ],
    ids=["convolution", "noise", "weight decay"],
)
def test_without_a_clear_span_the_coordinates_are_the_values(observation):
    coordinates = coordinates_of(observation)
    assert coordinates.basis is None
    assert coordinates.count == 64


def test_random_samples_have_the_size_of_pictures():
    observation, _ = next(messages())
    drawn = coordinates_of(observation).random(50, observation.data, torch.Generator().manual_seed(0))
    size = float((drawn @ coordinates_of(observation).basis).square().mean().sqrt())
    assert 0.1 < size < 1.0
