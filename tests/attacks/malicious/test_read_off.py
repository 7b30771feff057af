"""Traps return samples, by the attacker's own filter, for networks that a user may have written."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from leakgauge import models
from leakgauge.attacks import ATTACKS, trap_read_off
from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.malicious import DeadLayer, TrapServer, clean_share, plant, with_added_block
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.params import parameters_of
from leakgauge.federation.client import fedsgd
from leakgauge.federation.defences import Clipping, GaussianNoise, Quantisation
from leakgauge.federation.rounds import run_federation
from leakgauge.federation.steering import Steering
from tests.attacks.malicious.cases import digits, network, share_found, trapped


class OwnNetwork(nn.Module):
    """A network whose activations and pooling are functions, with strides and a hidden layer behind the traps."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.Conv2d(6, 20, 3, padding=1)
        self.dense, self.hidden, self.head = nn.Linear(20 * 4, 48), nn.Linear(48, 16), nn.Linear(16, 10)

    def forward(self, inputs):
        inner = functional.avg_pool2d(functional.relu(self.two(functional.relu(self.one(inputs)))), 2)
        inner = functional.relu(self.dense(torch.flatten(inner, 1)))
        return self.head(functional.relu(self.hidden(inner)))


@pytest.mark.parametrize("samples", [1, 12])
def test_every_sample_of_a_convolutional_network_comes_back(samples):
    observation, truth, expected = trapped(network(), digits(samples))
    result = trap_read_off()(observation)
    assert share_found(result, truth) == (1.0, 0)
    assert expected.expected > 0.95
    assert sorted(result.labels.tolist()) == sorted(truth.targets.tolist())


def test_peeling_returns_more_than_the_formula_for_one_direction():
    observation, truth, expected = trapped(network(dense=60), digits(32))
    found, wrong = share_found(trap_read_off()(observation), truth)
    assert expected.formula == clean_share(60, 32)
    assert found > expected.formula
    assert wrong == 0


def test_layers_are_found_by_what_they_see():
    torch.manual_seed(0)
    observation, truth, expected = trapped(OwnNetwork(), digits(6))
    assert expected.changed == ("one", "two", "dense", "hidden")
    found, wrong = share_found(trap_read_off()(observation), truth)
    assert found >= 0.8
    assert wrong == 0


@pytest.mark.parametrize("activation", [nn.GELU, nn.Tanh])
def test_smooth_convolutions_pass_the_picture_on(activation):
    torch.manual_seed(0)
    body = nn.Conv2d(1, 4, 3, stride=2, padding=1), activation(), nn.Flatten(), nn.Linear(64, 40), nn.ReLU()
    observation, truth, _ = trapped(nn.Sequential(*body, nn.Linear(40, 10)), digits(8))
    found, wrong = share_found(trap_read_off()(observation), truth)
    assert found >= 0.8
    assert wrong == 0


def test_rows_of_their_own_that_few_samples_activate():
    observation, truth, _ = trapped(network(dense=80), digits(8), "half_negative_rows", kind="half_negative")
    found, wrong = share_found(trap_read_off()(observation), truth)
    assert found >= 0.5
    assert wrong == 0


def test_twenty_local_steps_return_what_one_gradient_does():
    observation, truth, _ = trapped(network(), digits(12), steps=20)
    found, wrong = share_found(trap_read_off()(observation), truth)
    assert found >= 0.7  # samples of the class that wins in all outputs are lost
    assert wrong == 0


def test_several_batches_are_mixed_up_by_no_sample():
    observation, truth, _ = trapped(network(), digits(12), steps=6, batch=4)
    found, wrong = share_found(trap_read_off()(observation), truth)
    assert found > 0
    assert wrong == 0


def test_an_added_block_needs_no_layer_of_the_model():
    model = with_added_block(models.lenet(shape=(1, 8, 8), classes=10, seed=0), (1, 8, 8), units=128)
    honest = parameters_of(model.model)
    observation, truth, expected = trapped(model, digits(64), "added_block")
    assert share_found(trap_read_off()(observation), truth) == (1.0, 0)
    assert expected.changed == ("rows", "back")
    for name, value in honest.items():
        assert torch.equal(observation.sent[f"model.{name}"], value)


def test_noise_does_not_stop_a_server_that_scales_its_weights_and_clipping_with_noise_does():
    noise, clip = GaussianNoise(0.1), Clipping(1.0)
    found = {}
    for name, chain in (("noise", (noise,)), ("clipping", (clip,)), ("both", (clip, noise))):
        observation, truth, _ = trapped(network(), digits(8), defences=chain)
        found[name], wrong = share_found(trap_read_off()(observation), truth, limit=1e-2)
        assert wrong == 0, name
    assert found["noise"] == 1
    assert found["clipping"] > 0
    assert found["both"] == 0


def test_few_bits_blur_what_comes_back():
    observation, truth, _ = trapped(network(), digits(8), defences=(Quantisation(8),))
    result = trap_read_off()(observation)
    assert share_found(result, truth, limit=1e-6)[0] == 0


def test_a_dead_layer_for_the_others_leaves_the_target_alone_in_a_secure_sum():
    model, target = network(), digits(8)
    observation, truth, expected = trapped(model, target)
    dead = DeadLayer(network(), target.spec).next_weights([], expected.weights)
    other = network()
    with torch.no_grad():
        for name, value in other.named_parameters():
            value.copy_(dead[name])
    silent, _ = fedsgd(other, digits(8, seed=1))
    for name in ("dense.weight", "dense.bias"):
        assert not silent.gradient[name].any()
    both = {name: (value + silent.gradient[name]) / 2 for name, value in observation.gradient.items()}
    summed = replace(observation, gradient=both).knowing(samples=16)
    assert share_found(trap_read_off()(summed), truth) == (1.0, 0)


def test_a_live_federation_can_be_steered_and_names_its_server_malicious():
    model, clients = network(), [digits(12), digits(12, seed=1)]
    training = LocalTraining(samples=12, lr=0.01, epochs=1, batch_size=12)
    server = TrapServer(model, clients[0].spec, training)
    result = run_federation(model, clients, rounds=1, lr=0.01, steering=Steering(server, clients=(0,), rounds=1))
    [observation] = [one for one in result.observations[0] if one.steered]
    assert observation.steered == "trap_rows"
    assert "malicious server" in observation.threat_model()[0]
    assert share_found(trap_read_off()(observation), result.truths[0]) == (1.0, 0)


def test_an_honest_message_and_adam_are_refused():
    observation, _, _ = trapped(network(), digits(2))
    fits = ATTACKS["trap_read_off"].fits
    assert fits(observation).applies
    assert "needs a malicious server" in fits(replace(observation, steered="")).reason
    assert ATTACKS["trap_read_off"].malicious


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (models.lenet(shape=(1, 8, 8), classes=10, seed=0), "no dense layer with a bias"),
        (
            nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 20), nn.ReLU(),
                nn.Linear(20, 10),
            ),
            "maximum pooling",
        ),
        (
            nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 20),
                nn.ReLU(), nn.Linear(20, 10),
            ),
            "mix samples",
        ),
    ],
)  # fmt: skip
def test_other_architectures_are_refused_in_words(model, words):
    with pytest.raises(DoesNotFit, match=words):
        plant(model, digits(1).spec, LocalTraining(samples=4))


def test_the_server_uses_no_client_and_its_seed_decides():
    first, second, other = (plant(network(), digits(1).spec, LocalTraining(samples=4), seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)
    assert not torch.equal(first.weights["dense.weight"], other.weights["dense.weight"])


@pytest.mark.parametrize("samples", [1, 12])
def test_a_block_beside_batch_norm_in_training_is_read_by_agreement(samples):
    torch.manual_seed(0)
    body = nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10)
    model = with_added_block(nn.Sequential(*body), (1, 8, 8), units=128)
    observation, truth, _ = trapped(model, digits(samples), "added_block")
    found, wrong = share_found(trap_read_off()(observation), truth)
    assert found >= 0.9
    assert wrong == 0
