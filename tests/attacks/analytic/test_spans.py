"""Two spans solve for whole batches exactly, prove what they return, and return nothing else."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from leakgauge import data, models
from leakgauge.attacks import two_spans
from leakgauge.attacks.analytic.spans import fits
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import pair, score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import GaussianNoise
from tests.attacks.analytic.cases import DIGITS, NORMALISED, client, dense, worst_error


@pytest.mark.parametrize("samples", [1, 4, 8])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh])
def test_samples_and_labels_are_exact(samples, activation):
    observation, truth = client(dense(48, 24, activation=activation), samples)
    assert fits(observation).applies
    result = two_spans()(observation)
    assert worst_error(result, truth) < 1e-3
    assert result.labels is not None
    assert str(result.outcome).startswith(f"{samples} of {samples} samples solved for and proven, in ")
    assert result.outcome.kind == "converged"


def test_normalised_pixels_come_back_as_a_person_sees_them():
    observation, truth = client(dense(48, 24), 6, digits=NORMALISED)
    assert worst_error(two_spans()(observation), truth) < 1e-3


def test_an_unknown_number_of_samples_is_the_rank_of_the_gradient():
    observation, truth = client(dense(48, 24), 6, hidden=["samples"])
    assert fits(observation).applies
    result = two_spans()(observation)
    assert worst_error(result, truth) < 1e-3
    assert "6 of 6" in str(result.outcome)


def test_one_local_step_is_as_good_as_a_gradient():
    training = {"lr": 0.1, "epochs": 1, "batch_size": 6, "momentum": 0.9, "weight_decay": 0.01}
    observation, truth = fedavg(dense(48, 24), DIGITS.share(range(6)), **training)
    assert fits(observation).applies
    assert worst_error(two_spans()(observation), truth) < 1e-2


def test_samples_that_the_model_has_learned_do_not_hide_the_others():
    model = dense(64, 48)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(150):
        optimiser.zero_grad()
        functional.cross_entropy(model(DIGITS.inputs[:12]), DIGITS.targets[:12]).backward()
        optimiser.step()
    observation, truth = client(model, 16)
    result = two_spans()(observation)
    pairing = pair(result.samples, truth.inputs)
    assert bool(pairing.matched[12:].all())
    assert float((pairing.apply(result.samples)[12:] - truth.inputs[12:]).abs().max()) < 1e-3
    assert float(torch.cdist(result.samples.flatten(1), truth.inputs.flatten(1)).amin(1).max()) < 0.05


def test_a_trained_network_is_solved_too():
    model = dense(64, 32)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(200):
        rows = torch.arange(64) + 64 * (step % 20) + 100
        optimiser.zero_grad()
        functional.cross_entropy(model(DIGITS.inputs[rows]), DIGITS.targets[rows]).backward()
        optimiser.step()
    observation, truth = client(model, 8)
    assert worst_error(two_spans()(observation), truth) < 1e-2


def test_the_output_layer_counts_as_the_second_layer():
    observation, truth = client(dense(96), 6)
    assert worst_error(two_spans()(observation), truth) < 1e-3


class Unusual(nn.Module):
    """A network with functional activations, its own normalisation and layers in no order."""

    def __init__(self):
        super().__init__()
        self.last, self.middle, self.entry = nn.Linear(24, 10), nn.Linear(48, 24), nn.Linear(64, 48)

    def forward(self, inputs):
        """Return the class scores."""
        hidden = functional.silu(self.entry(((inputs - 0.3) / 0.4).reshape(-1, 64)))
        return self.last(functional.relu(self.middle(hidden)))


class Transposed(Unusual):
    """The same network on transposed pictures."""

    def forward(self, inputs):
        """Return the class scores."""
        return self.last(torch.tanh(self.middle(torch.tanh(self.entry(inputs.mT.flatten(1))))))


@pytest.mark.parametrize("network", [Unusual, Transposed])
def test_layers_are_found_by_what_they_see(network):
    torch.manual_seed(0)
    observation, truth = client(network(), 4)
    assert worst_error(two_spans()(observation), truth) < 1e-3


def test_batch_norm_in_eval_mode_is_an_elementwise_activation():
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(48, 24), batch_norm=True, seed=0)
    observation, truth = client(model, 4, mode="eval")
    assert worst_error(two_spans()(observation), truth) < 1e-3


def test_a_sample_that_the_client_has_twice_is_returned_twice():
    observation, truth = fedsgd(dense(48, 24), DIGITS.share([0, 1, 2, 1]))
    result = two_spans()(observation)
    assert "4 of 4" in str(result.outcome)
    assert worst_error(result, truth) < 1e-3


def test_a_regression_gives_rows_and_targets():
    table = data.load("diabetes").share(range(4))
    model = models.mlp(shape=table.spec.shape, classes=1, hidden=(32, 16), seed=0)
    observation, truth = fedsgd(model, table)
    assert fits(observation).applies
    result = two_spans()(observation)
    order = torch.cdist(truth.inputs, result.samples).argmin(1)
    assert torch.allclose(result.samples[order], truth.inputs, rtol=1e-3, atol=1e-3)
    assert torch.allclose(result.labels[order], truth.targets, rtol=1e-2)


@pytest.mark.parametrize("noise", [0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_noise_leaves_nothing_to_prove(noise, seed):
    torch.manual_seed(seed)
    observation, truth = client(dense(48, 24), 4)
    gradient = {
        name: value + noise * value.norm() / value.numel() ** 0.5 * torch.randn_like(value)
        for name, value in observation.gradient.items()
    }
    result = two_spans(attempts=2)(replace(observation, gradient=gradient))
    assert tuple(result.samples.shape) == (0, 1, 8, 8)
    assert str(result.outcome) == "none of 4 samples could be proven, so none is returned, after 2 searches"
    assert score(result, truth)["recovered"].value == 0


def test_samples_of_a_noisy_gradient_are_not_called_exact():
    observation, truth = client(dense(96, 48, activation=nn.Tanh), 4)
    torch.manual_seed(0)
    gradient = {
        name: value + 3e-3 * value.norm() / value.numel() ** 0.5 * torch.randn_like(value)
        for name, value in observation.gradient.items()
    }
    result = two_spans()(replace(observation, gradient=gradient))
    assert len(result.samples) == 4
    assert 1e-4 < worst_error(result, truth) < 0.1
    assert "not exact, with an estimated relative error of up to 0.0" in str(result.outcome)
    assert result.outcome.kind == "finished"


def test_a_defence_with_noise_is_attacked_in_vain():
    observation, _ = client(dense(48, 24), 4, defences=[GaussianNoise(0.05)])
    assert fits(observation).applies
    assert len(two_spans(attempts=1)(observation).samples) == 0


def test_more_samples_than_the_second_layer_separates_are_not_guessed():
    observation, _ = client(dense(96), 12)
    assert "separates at most 9 samples, and here are 12" in fits(observation).reason
    result = two_spans()(observation)
    assert len(result.samples) == 0
    assert str(result.outcome).endswith("The gradients of these layers separate at most 9 samples")


def test_ctrl_c_returns_what_is_proven():
    observation, _ = client(dense(48, 24), 4)

    def interrupt(step, total, loss):
        raise KeyboardInterrupt

    result = two_spans()(observation, progress=interrupt)
    assert result.outcome.kind == "interrupted"
    assert len(result.samples) > 0


def several_steps():
    return fedavg(dense(48, 24), DIGITS.share(range(4)), lr=0.1, epochs=2, batch_size=4)[0]


def batch_norm():
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(48, 24), batch_norm=True, seed=0)
    return client(model, 4)[0]


def dropout():
    return client(nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Dropout(), nn.Linear(48, 10)), 4)[0]


REFUSED = {
    "has no bias": lambda: client(dense(48, 24, bias=False), 2)[0],
    "no dense layer gets the samples themselves": lambda: client(models.lenet(shape=(1, 8, 8), seed=0), 2)[0],
    "made for one gradient or one local step": several_steps,
    "no elementwise activation between": batch_norm,
    "there is no elementwise activation": dropout,
    "has a single dense layer": lambda: client(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 2)[0],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    observation = REFUSED[reason]()
    fit = fits(observation)
    assert not fit.applies
    assert reason in fit.reason
    with pytest.raises(InvalidInput, match=reason):
        two_spans()(observation)


def test_more_samples_than_independent_inputs_are_solved_for_if_the_second_layer_separates_them():
    """The inputs of 70 digits are linearly dependent, because only 52 pixels are not black in all of them."""
    observation, truth = client(dense(256, 128), 70)
    assert worst_error(two_spans()(observation), truth) < 1e-2


def test_more_samples_than_both_layers_separate_are_refused():
    reason = fits(client(dense(256, 60), 70)[0]).reason
    assert reason == "the dense layer '3' separates at most 60 samples, and here are 70"


def test_nearly_as_many_samples_as_inputs_are_solved_for():
    observation, truth = client(dense(256, 128), 50)
    assert fits(observation).reason == "samples enter two dense layers in a row, whose gradients determine them"
    assert worst_error(two_spans()(observation), truth) < 1e-2


def test_copies_are_no_reason_to_refuse():
    observation, _ = fedsgd(dense(256, 128), DIGITS.share([0, 1, 2, 3] * 20))
    fit = fits(observation)
    assert fit.applies
    assert ". The gradient shows 4 of 80 samples." in fit.reason


def test_too_many_samples_for_the_width_are_refused():
    assert (
        "12 samples are too many for the 20 neurons of the dense layer '1'" in fits(client(dense(20, 24), 12)[0]).reason
    )


@pytest.mark.parametrize("option", ["starts", "iterations", "attempts", "tolerance"])
def test_impossible_options_are_refused(option):
    with pytest.raises(InvalidInput, match=option):
        two_spans(**{option: 0})
