"""Samples of each class from a model, and samples from a gradient."""

import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks import class_samples
from leakgauge.attacks.local_model import LastReturned
from leakgauge.core.errors import InvalidInput
from leakgauge.testing import small_case
from tests.attacks.local_model.cases import linear, linear_clients, watched


def digits_model():
    digits = data.load("digits").share(range(300))
    model = models.build("mlp", shape=[1, 8, 8], classes=10, hidden=[32], seed=0)
    rounds = watched(model, [digits], rounds=30, lr=0.5, batch_size=50)[0]
    return LastReturned()(rounds), digits


def test_a_sample_for_each_class_that_the_model_is_sure_of():
    model, digits = digits_model()
    found = class_samples.by_model(model, steps=100, smooth=0)
    assert found.samples.shape == (10, 1, 8, 8)
    assert float(found.samples.min()) >= 0
    assert float(found.samples.max()) <= 1
    assert float(found.probabilities.min()) > 0.9
    chances = model.probabilities(found.samples).gather(1, found.labels.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(chances, found.probabilities)
    means = torch.stack([digits.inputs[digits.targets == label].mean(0) for label in range(10)])
    distances = (found.samples.unsqueeze(1) - means).flatten(2).square().mean(2)
    assert (distances.argmin(1) == torch.arange(10)).sum() >= 5


def test_blurred_slopes_make_smoother_pictures():
    model, _ = digits_model()
    rough, smooth = (class_samples.by_model(model, steps=60, smooth=radius).samples for radius in (0, 1))
    assert smooth.diff(dim=3).abs().mean() < 0.9 * rough.diff(dim=3).abs().mean()


def test_only_the_classes_asked_for():
    model, _ = digits_model()
    assert class_samples.by_model(model, [7, 2], steps=1).labels.tolist() == [7, 2]
    with pytest.raises(InvalidInput, match="0 to 9"):
        class_samples.by_model(model, [10])
    regression = LastReturned()(watched(linear(3), linear_clients(3), rounds=1)[0])
    with pytest.raises(InvalidInput, match="regression"):
        class_samples.by_model(regression)


def test_the_gradient_based_attack_is_inverting_gradients():
    observation, truth = small_case("gradient")
    found = class_samples.by_gradient(observation, steps=5)
    assert found.samples.shape == truth.inputs.shape
    assert "Inversion" in found.attack
