"""Dense factorisation solves for batches with more samples than classes, and returns nothing that is wrong."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from leakgauge import data, models
from leakgauge.attacks import dense_factorisation
from leakgauge.attacks.analytic.factorisation import fits
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.analytic.cases import DIGITS, NORMALISED, client, dense, worst_error


@pytest.mark.parametrize(
    "activation", [nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.GELU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.Softplus]
)
def test_one_hidden_layer_and_more_samples_than_classes(activation):
    observation, truth = client(dense(96, activation=activation), 14)
    assert fits(observation).applies
    result = dense_factorisation()(observation)
    assert worst_error(result, truth) < 1e-3
    assert result.labels is not None
    assert str(result.outcome).startswith("14 of 14 samples solved for and proven, in ")
    assert result.outcome.kind == "converged"


@pytest.mark.parametrize("samples", [1, 2, 32])
def test_an_unknown_number_of_samples_is_the_rank_of_the_gradient(samples):
    observation, truth = client(dense(192), samples, digits=NORMALISED, hidden=["samples"])
    assert worst_error(dense_factorisation()(observation), truth) < 1e-3


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_deeper_networks_are_solved_too(activation):
    observation, truth = client(dense(96, 32, 16, activation=activation), 16)
    assert worst_error(dense_factorisation()(observation), truth) < 1e-3


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.GELU])
def test_trained_networks_need_no_zeros(activation):
    model = dense(128, activation=activation)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(200):
        rows = torch.arange(64) + 64 * (step % 20) + 100
        optimiser.zero_grad()
        inputs = NORMALISED.spec.normalise(DIGITS.inputs[rows])
        functional.cross_entropy(model(inputs), DIGITS.targets[rows]).backward()
        optimiser.step()
    observation, truth = client(model, 16, digits=NORMALISED)
    assert worst_error(dense_factorisation()(observation), truth) < 1e-2


@pytest.mark.parametrize("hidden", [(96,), (96, 48)])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_layers_without_bias(hidden, activation):
    observation, truth = client(dense(*hidden, activation=activation, bias=False), 12)
    assert worst_error(dense_factorisation()(observation), truth) < 1e-3


def test_one_local_step_is_as_good_as_a_gradient():
    training = {"lr": 0.1, "epochs": 1, "batch_size": 12, "momentum": 0.9, "weight_decay": 0.01}
    observation, truth = fedavg(dense(96), DIGITS.share(range(12)), **training)
    assert worst_error(dense_factorisation()(observation), truth) < 1e-2


def test_a_sample_that_the_client_has_twice_is_returned_twice():
    observation, truth = fedsgd(dense(96), DIGITS.share([*range(12), 1]))
    result = dense_factorisation()(observation)
    assert "13 of 13" in str(result.outcome)
    assert worst_error(result, truth) < 1e-3


def test_one_logit():
    digits = replace(DIGITS, targets=DIGITS.targets % 2, spec=replace(DIGITS.spec, classes=2))
    observation, truth = fedsgd(dense(96, classes=1), digits.share(range(8)), loss="binary_cross_entropy")
    assert fits(observation).applies
    assert worst_error(dense_factorisation()(observation), truth) < 1e-3


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_a_regression_with_one_hidden_layer(activation):
    table = data.load("diabetes").share(range(6))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(table.spec.shape[0], 64), activation(), nn.Linear(64, 1))
    observation, truth = fedsgd(model, table)
    assert fits(observation).applies
    result = dense_factorisation()(observation)
    assert len(result.samples) == 6
    order = torch.cdist(truth.inputs, result.samples).argmin(1)
    assert torch.allclose(result.samples[order], truth.inputs, rtol=1e-2, atol=1e-2)
    assert torch.allclose(result.labels[order], truth.targets, rtol=1e-2)


@pytest.mark.parametrize("noise", [0.1, 1.0])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_noise_leaves_nothing_to_prove(noise, activation):
    torch.manual_seed(0)
    observation, _ = client(dense(96, activation=activation), 12)
    gradient = {
        name: value + noise * value.norm() / value.numel() ** 0.5 * torch.randn_like(value)
        for name, value in observation.gradient.items()
    }
    result = dense_factorisation(attempts=2)(replace(observation, gradient=gradient))
    assert tuple(result.samples.shape) == (0, 1, 8, 8)
    assert str(result.outcome).startswith("none of 12 samples could be proven, so none is returned")


def test_an_activation_that_is_linear_where_the_samples_are_proves_nothing():
    observation, _ = client(dense(96, activation=nn.Hardtanh), 12)
    assert len(dense_factorisation(attempts=2)(observation).samples) == 0


class Residual(nn.Module):
    """A network in which outputs of the first layer bypass the second layer."""

    def __init__(self):
        super().__init__()
        self.entry, self.inner, self.head = nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 10)

    def forward(self, inputs):
        """Return the class scores."""
        hidden = functional.relu(self.entry(inputs.flatten(1)))
        return self.head(hidden + functional.relu(self.inner(hidden)))


def layers(*middle, classes=10):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), *middle, nn.Linear(48, classes))


def several_steps():
    return fedavg(dense(48), DIGITS.share(range(4)), lr=0.1, epochs=2, batch_size=4)[0]


def two_outputs():
    table = data.load("diabetes").share(range(4))
    table = replace(table, targets=table.targets[:, None].repeat(1, 2))
    return fedsgd(models.mlp(shape=table.spec.shape, classes=2, hidden=(32,), seed=0), table)[0]


def no_scale():
    table = data.load("diabetes").share(range(4))
    model = nn.Sequential(nn.Linear(table.spec.shape[0], 32, bias=False), nn.ReLU(), nn.Linear(32, 1))
    return fedsgd(model, table)[0]


REFUSED = {
    "bypass the next dense layer": lambda: client(Residual(), 4)[0],
    "are linear": lambda: client(layers(), 4)[0],
    "no elementwise activation between": lambda: client(layers(nn.LayerNorm(48), nn.ReLU()), 4)[0],
    "there is no elementwise activation": lambda: client(layers(nn.BatchNorm1d(48), nn.ReLU()), 4)[0],
    "no elementwise": lambda: client(layers(nn.ReLU(), nn.Dropout()), 4)[0],
    "made for one gradient or one local step": several_steps,
    "has a single dense layer": lambda: client(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 2)[0],
    "the model has one output": two_outputs,
    "samples up to a factor": no_scale,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    observation = REFUSED[reason]()
    fit = fits(observation)
    assert not fit.applies
    assert reason in fit.reason
    with pytest.raises(InvalidInput, match=reason):
        dense_factorisation()(observation)


def test_too_many_samples_for_the_width_are_refused():
    assert "30 samples are too many for the 48 neurons" in fits(client(dense(48), 30)[0]).reason
