"""Running statistics before and after a round reveal those of the client's batches."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import attacks
from leakgauge.attacks.inversion.batch_statistics import revealed_statistics
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.training import local_sgd
from tests.shared import digits


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


def test_one_step_reveals_the_mean_and_the_variance_of_the_batch():
    model = network()
    observation, truth = fedsgd(model, digits().share(range(3)), mode="train")
    (layer,) = revealed_statistics(observation).layers
    before_norm = model[0](truth.data.normalise(truth.inputs)).detach()
    assert torch.allclose(layer.mean, before_norm.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(layer.variance, before_norm.transpose(0, 1).flatten(1).var(1), rtol=1e-3, atol=1e-5)


def distance_of(observation, batches):
    """Return the distance between the revealed statistics and those of training on these batches."""
    statistics = revealed_statistics(observation)
    with statistics.recorded():
        local_sgd(observation.model, observation.sent, batches, observation.training, buffers=observation.buffers)
    return float(statistics.distance().detach())


def test_the_clients_own_batches_have_the_revealed_statistics_after_several_steps():
    observation, truth = fedavg(network(), digits().share(range(6)), lr=0.1, epochs=2, batch_size=3, mode="train")
    inputs = truth.data.normalise(truth.inputs)
    batches = [(inputs[rows], truth.targets[rows]) for rows in truth.order]
    assert distance_of(observation, batches) < 1e-6
    brighter = [(inputs + 1, targets) for inputs, targets in batches]
    assert distance_of(observation, brighter) > 0.1


def test_hooks_are_removed_after_recording():
    observation, _ = fedsgd(network(), digits().share(range(3)), mode="train")
    statistics = revealed_statistics(observation)
    with pytest.raises(ZeroDivisionError), statistics.recorded():
        raise ZeroDivisionError
    assert not any(module._forward_pre_hooks for module in observation.model.modules())
    assert statistics.distance() is None


def test_messages_without_statistics_reveal_none():
    samples = digits().share(range(4))
    assert revealed_statistics(fedsgd(network(), samples, mode="eval")[0]) is None
    assert revealed_statistics(fedsgd(network(), samples, mode="train", share_statistics=False)[0]) is None
    hidden, _ = fedavg(network(), samples, lr=0.1, mode="train", hidden=["epochs"])
    assert revealed_statistics(hidden) is None
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert revealed_statistics(fedsgd(plain, samples, mode="train")[0]) is None


def small_network():
    """Return a network with too few weights to determine a batch of six samples without their statistics."""
    torch.manual_seed(0)
    blocks = [(nn.Conv2d(inputs, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2)) for inputs in (1, 8)]
    return nn.Sequential(*blocks[0], *blocks[1], nn.Flatten(), nn.Linear(32, 10))


def test_statistics_help_the_attack():
    samples = digits().share([3, 5, 8, 13, 21, 34])
    samples = replace(samples, spec=replace(samples.spec, mean=(0.305,), std=(0.376,)))
    observation, truth = fedsgd(small_network(), samples, mode="train", granted=["labels"])
    errors = []
    for weight in (1.0, 0.0):
        attack = attacks.build("prior_path", steps=60, lr=0.3, statistics=weight)
        result = attack(observation, progress=False)
        assert ("statistics" in result.trace.terms) == (weight > 0)
        errors.append(score(result, truth)["mse"].value)
    assert errors[0] < 0.8 * errors[1]
