"""Neurons of a dense first layer that hold single samples are read off exactly."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from leakgauge import data, models
from leakgauge.attacks import dense_read_off
from leakgauge.attacks.analytic.read_off import fits
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.analytic.cases import DIGITS, NORMALISED, client, dense, worst_error


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Sigmoid])
def test_one_sample_is_read_off_for_any_activation(activation):
    observation, truth = client(dense(48, 24, activation=activation), 1)
    assert fits(observation) == (True, "the sample enters a dense layer with a bias, whose gradient is a copy of it")
    result = dense_read_off()(observation)
    assert worst_error(result, truth) < 1e-5
    assert result.labels.tolist() == truth.targets.tolist()
    assert str(result.outcome) == "1 of 1 samples read off exactly"
    assert result.outcome.kind == "converged"


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.last(flat + torch.relu(self.first(flat)))


AFTERWARDS = {
    "dropout": lambda: [nn.Linear(64, 48), nn.Dropout(0.5), nn.ReLU(), nn.Linear(48, 10)],
    "late dropout": lambda: [nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 24), nn.Dropout(0.3), nn.Linear(24, 10)],
    "layer norm": lambda: [nn.Linear(64, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 10)],
    "random activation": lambda: [nn.Linear(64, 48), nn.RReLU(), nn.Linear(48, 10)],
    "convolution": lambda: [nn.Linear(64, 36), nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 10, 6), nn.Flatten()],
    "residual": lambda: [Residual()],
}


@pytest.mark.parametrize("layers", AFTERWARDS)
@pytest.mark.parametrize("local_steps", [1, 5])
def test_one_sample_is_read_off_whatever_comes_after_the_first_layer(layers, local_steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), *AFTERWARDS[layers]())
    if local_steps == 1:
        observation, truth = fedsgd(model, DIGITS.share([3]), mode="train")
    else:
        observation, truth = fedavg(model, DIGITS.share([3]), lr=0.1, epochs=5, batch_size=1, mode="train")
    assert fits(observation).applies
    result = dense_read_off()(observation)
    assert float((result.samples - truth.inputs).abs().max()) < 1e-3
    assert result.outcome.kind == "converged"


def test_several_samples_with_dropout_are_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(), nn.Linear(48, 10))
    assert "is random, as batch norm and dropout" in fits(client(model, 2, mode="train")[0]).reason


def test_a_linear_model_gives_its_sample():
    observation, truth = client(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 1)
    assert worst_error(dense_read_off()(observation), truth) < 1e-5


@pytest.mark.parametrize("digits", [DIGITS, NORMALISED])
def test_several_samples_are_read_off_neurons_of_one_sample(digits):
    observation, truth = client(dense(512), 4, digits=digits)
    assert fits(observation).applies
    result = dense_read_off()(observation)
    assert worst_error(result, truth) < 1e-5
    assert str(result.outcome) == "4 of 4 samples read off exactly"


def test_in_a_larger_batch_only_some_samples_are_found_and_all_of_them_are_right():
    observation, truth = client(dense(512, 64), 16)
    result = dense_read_off()(observation)
    count = len(result.samples)
    assert 0 < count < 16
    assert str(result.outcome) == f"{count} of 16 samples read off exactly"
    distances, rows = torch.cdist(result.samples.flatten(1), truth.inputs.flatten(1)).min(1)
    assert float(distances.max()) < 1e-4
    assert len(rows.unique()) == count
    assert torch.equal(result.labels, truth.targets[rows])


PEOPLE = data.from_csv(Path(__file__).parents[2] / "known_answers" / "people.csv", target="ill")


def table(rows, *hidden):
    torch.manual_seed(1)
    model = models.mlp(shape=PEOPLE.spec.shape, classes=2, hidden=hidden, seed=1)
    return model, PEOPLE.share(rows)


def false_finds(result, truth):
    """Return the number of returned samples that are no samples of the client."""
    distances = torch.cdist(result.samples, truth.inputs).min(1).values / truth.inputs.norm(dim=1).median()
    return int((distances > 1e-3).sum())


@pytest.mark.parametrize("start", range(0, 64, 8))
def test_neurons_that_agree_on_a_mixture_of_samples_are_no_proof(start):
    """With two classes and one hidden layer, all neurons with the same active samples have proportional gradients."""
    observation, truth = fedsgd(*table(range(start, start + 8), 128))
    result = dense_read_off()(observation)
    assert false_finds(result, truth) == 0
    assert result.outcome.kind == ("converged" if len(result.samples) == 8 else "finished")


@pytest.mark.parametrize("start", range(0, 32, 4))
def test_mixtures_after_several_steps_are_no_samples(start):
    observation, truth = fedavg(*table(range(start, start + 4), 128), lr=0.05, epochs=2, batch_size=2)
    assert false_finds(dense_read_off()(observation), truth) == 0


def test_the_proof_keeps_most_samples_of_a_small_batch_of_two_classes():
    counts = [len(dense_read_off()(fedsgd(*table(range(start, start + 4), 128))[0]).samples) for start in (0, 4, 8, 12)]
    assert sum(counts) >= 12


def test_a_gradient_of_full_rank_never_converges():
    observation, _ = fedsgd(*table(range(16), 512))
    result = dense_read_off()(observation)
    assert result.outcome.kind == "finished"
    assert not len(result.samples) or "without a proof" in str(result.outcome)


def test_an_unknown_number_of_samples_is_the_rank_of_the_gradient():
    observation, truth = client(dense(512), 4, hidden=["samples"])
    assert observation.training.samples is None
    result = dense_read_off()(observation)
    assert worst_error(result, truth) < 1e-5
    assert "4 of 4" in str(result.outcome)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_sample_survives_many_local_steps(momentum):
    observation, truth = fedavg(dense(48, 24), DIGITS.share([3]), lr=0.1, epochs=20, batch_size=1, momentum=momentum)
    result = dense_read_off()(observation)
    assert worst_error(result, truth) < 1e-3
    assert result.labels is None


def test_one_local_step_is_as_good_as_a_gradient():
    observation, truth = fedavg(dense(512), DIGITS.share(range(4)), lr=0.1, epochs=1, batch_size=4, weight_decay=0.1)
    result = dense_read_off()(observation)
    assert worst_error(result, truth) < 1e-2
    assert result.labels is not None


def test_several_samples_after_several_steps_come_without_labels():
    observation, truth = fedavg(dense(1024), DIGITS.share(range(3)), lr=0.05, epochs=2, batch_size=2)
    result = dense_read_off()(observation)
    assert result.labels is None
    assert len(result.samples) > 0
    assert float(torch.cdist(result.samples.flatten(1), truth.inputs.flatten(1)).min(1).values.max()) < 0.05


def test_a_slightly_noisy_gradient_of_one_sample_gives_an_estimate_with_its_error():
    observation, truth = client(dense(48, 24), 1)
    result = dense_read_off()(noisy(observation, 0.01))
    assert "estimated relative error" in str(result.outcome)
    assert worst_error(result, truth) < 0.2


@pytest.mark.parametrize(("samples", "noise"), [(1, 20.0), (4, 0.01), (4, 1.0)])
def test_noise_leaves_nothing_to_read(samples, noise):
    observation, _ = client(dense(256, 24), samples)
    result = dense_read_off()(noisy(observation, noise))
    assert tuple(result.samples.shape) == (0, 1, 8, 8)
    assert result.outcome.kind == "finished"
    assert str(result.outcome).startswith(("nothing could be read off", "none of 4 samples could be read off"))


def noisy(observation, share):
    torch.manual_seed(0)
    gradient = {
        name: value + share * value.norm() / value.numel() ** 0.5 * torch.randn_like(value)
        for name, value in observation.gradient.items()
    }
    return replace(observation, gradient=gradient)


def batch_norm(mode):
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(16,), batch_norm=True, seed=0)
    return client(model, 3, mode=mode)[0]


def decayed():
    return fedavg(dense(48), DIGITS.share([0]), lr=0.1, epochs=2, batch_size=1, weight_decay=0.1)[0]


REFUSED = {
    "has no bias": lambda: client(dense(48, bias=False), 2)[0],
    "no dense layer gets the samples themselves": lambda: client(models.lenet(shape=(1, 8, 8), seed=0), 2)[0],
    "active for all samples": lambda: client(dense(48, activation=nn.GELU), 2)[0],
    "mixes the samples of a batch": lambda: batch_norm("train"),
    "weight decay over several local steps": decayed,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    observation = REFUSED[reason]()
    fit = fits(observation)
    assert not fit.applies
    assert reason in fit.reason
    if reason != "active for all samples":
        with pytest.raises(InvalidInput, match=reason):
            dense_read_off()(observation)


def test_a_frozen_first_layer_is_refused():
    model = dense(48)
    model[1].weight.requires_grad_(False)
    assert "is not trained" in fits(client(model, 1)[0]).reason


def test_an_impossible_tolerance_is_refused():
    with pytest.raises(InvalidInput, match="tolerance must be a number above 0"):
        dense_read_off(tolerance=0)
