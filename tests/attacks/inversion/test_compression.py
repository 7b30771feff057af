"""Pruned and quantised messages are recognised, and clean messages are not taken for them."""

import math

import pytest
import torch

from leakgauge import defences, models
from leakgauge.attacks.inversion.compression import Message, Pruned, pruning_of, rounding_noise
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits


def network(name="cnn"):
    if name == "mlp":
        return models.mlp(shape=(1, 8, 8), classes=10, hidden=[64, 32], seed=0)
    return models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[8, 16], dense=64, seed=0)


def message(*chain, name="cnn", samples=4, **options):
    return fedsgd(network(name), digits().share(range(samples)), defences=chain, **options)[0]


@pytest.mark.parametrize("name", ["cnn", "mlp"])
@pytest.mark.parametrize("samples", [1, 2, 8])
def test_zeros_of_dead_units_are_not_pruning(name, samples):
    clean = message(name=name, samples=samples)
    assert (flatten(clean.gradient) == 0).double().mean() > 0.1
    trained, _ = fedavg(network(name), digits().share(range(samples)), lr=0.01, epochs=2)
    for observation in (clean, trained):
        assert pruning_of(observation) is None
        assert rounding_noise(observation) == 0


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("keep", [0.02, 0.3])
def test_top_k_is_recognised_with_its_limit(samples, keep):
    pruned = pruning_of(message(defences.TopK(keep), samples=samples))
    truth = flatten(message(samples=samples).gradient).abs()
    left_out = truth[flatten(pruned.sent) == 0]
    assert 0 < left_out.max() <= min(pruned.limits.values()) < math.inf


@pytest.mark.parametrize("probability", [0.3, 0.9])
def test_random_pruning_has_no_limit(probability):
    pruned = pruning_of(message(defences.RandomPruning(probability, on="update")))
    assert set(pruned.limits.values()) == {math.inf}


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_the_noise_of_quantisation_follows_from_its_step(bits):
    rounded = message(defences.Quantisation(bits))
    error = flatten(rounded.gradient) - flatten(message().gradient)
    share = float(error.square().sum() / flatten(rounded.gradient).square().sum())
    assert pruning_of(rounded) is None
    assert share / 3 < rounding_noise(rounded) < 3 * share


def test_ignored_entries_do_not_count():
    observed = {"weight": torch.tensor([1.0, 2.0, 3.0])}
    part = Message.of(observed, {"weight": torch.tensor([1.0, 0.0, 1.0])})
    assert part.observed["weight"].tolist() == [1, 0, 3]
    assert part.visible({"weight": torch.tensor([5.0, 6.0, 7.0])})["weight"].tolist() == [5, 0, 7]
    assert Message(observed).visible(observed) is observed


def test_entries_that_were_left_out_count_above_the_limit_only():
    sent = {"weight": torch.tensor([1.0, 0.0, 0.0])}
    top = Message.of({"weight": torch.tensor([4.0, 0.0, 0.0])}, sent, Pruned(sent, {"weight": 4.0}))
    assert top.visible({"weight": torch.tensor([2.0, -1.0, -5.0])})["weight"].tolist() == [2, 0, -3]
    random = Message.of(top.observed, sent, Pruned(sent, {"weight": math.inf}))
    assert random.visible({"weight": torch.tensor([2.0, -1.0, -5.0])})["weight"].tolist() == [2, 0, 0]
