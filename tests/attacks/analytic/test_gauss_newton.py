"""Few samples of small networks, from the equations of the whole message."""

from dataclasses import replace

import pytest
import torch

from leakgauge import attacks, data, models
from leakgauge.attacks.analytic.coordinates import coordinates_of
from leakgauge.attacks.analytic.gauss_newton import Ending, _is_exact, _unknowns, fits
from leakgauge.attacks.analytic.whole_message import in_double
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.seeding import generator
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences.noise import GaussianNoise
from tests.known_answers import networks

DIGITS = data.load("digits")


def transformer(**options):
    return models.vit(**{"shape": (1, 8, 8), "patch": 2, "width": 24, "depth": 1, "positions": "fixed", **options})


def lenet():
    return models.lenet(shape=(1, 8, 8), activation="sigmoid", seed=0)


def attacked(observation, seed=0, **options):
    assert fits(observation).applies, fits(observation).reason
    return attacks.gauss_newton(**options)(observation, seed=seed, progress=False)


def test_a_transformer_with_fixed_positions_is_solved_exactly():
    observation, truth = fedsgd(transformer(seed=0, heads=4, pooling="mean"), DIGITS.share([11]))
    result = attacked(observation)
    assert score(result, truth)["psnr"].value > 60
    assert result.outcome.kind == "converged"
    assert ", exact, with an estimated error of " in str(result.outcome)
    assert torch.equal(result.labels, truth.targets)


@pytest.mark.parametrize("training", [{"epochs": 2}, {"epochs": 2, "recipe": LocalTraining(momentum=0.9)}])
def test_local_steps_are_solved(training):
    observation, truth = fedavg(lenet(), DIGITS.share([2]), lr=0.1, **training)
    assert score(attacked(observation), truth)["psnr"].value > 60


def test_one_logit_returns_a_batch_with_its_labels():
    people = data.load("breast_cancer")
    torch.manual_seed(0)
    model = networks.one_logit(shape=people.spec.shape)
    observation, truth = fedsgd(model, people.share(range(20, 23)), loss="binary_cross_entropy")
    result = attacked(observation)
    assert result.outcome.kind == "converged"
    assert score(result, truth)["rows"].value == 1
    assert score(result, truth)["label_errors"].value == 0


def test_targets_of_a_regression_are_solved_with_the_samples():
    patients = data.load("diabetes")
    torch.manual_seed(0)
    model = networks.dense(shape=patients.spec.shape, classes=1)
    observation, truth = fedsgd(model, patients.share(range(4)), loss="mse")
    assert observation.labels is None
    result = attacked(observation)
    assert result.outcome.kind == "converged"
    torch.testing.assert_close(result.labels.sort().values, truth.targets.sort().values, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("sigma", [1e-5, 0.1])
def test_noise_is_never_called_exact(sigma):
    observation, truth = fedsgd(lenet(), DIGITS.share([0]), defences=GaussianNoise(sigma=sigma))
    result = attacked(observation, starts=1)
    exact = score(result, truth)["psnr"].value > 50
    assert exact or result.outcome.kind == "finished"


def test_a_mixture_of_two_clients_is_never_called_exact():
    """The mean of two gradients, which the attacker takes for the gradient of one sample."""
    model = lenet()
    (first, _), (second, _) = (fedsgd(model, DIGITS.share([number])) for number in (0, 10))
    mean = {name: (value + second.gradient[name]) / 2 for name, value in first.gradient.items()}
    result = attacked(replace(first, gradient=mean), starts=1)
    assert result.outcome.kind == "finished"
    assert "not exact" in str(result.outcome)


def test_a_label_that_is_no_class_is_no_proof():
    observation, _ = fedsgd(lenet(), DIGITS.share([0, 1]))
    unknowns = _unknowns(in_double(observation), coordinates_of(observation), generator(0, "labels"))
    point = torch.cat([torch.zeros(128, dtype=torch.double), unknowns.start])
    assert _is_exact(Ending(point, 1e-7, 1e-6), unknowns, observation)
    assert not _is_exact(Ending(point, 1e-7, 1e-2), unknowns, observation)
    assert not _is_exact(Ending(point, 1e-3, 1e-6), unknowns, observation)
    point[-1] += 0.3
    assert not _is_exact(Ending(point, 1e-7, 1e-6), unknowns, observation)


REFUSED = [
    (lambda: fedsgd(lenet(), DIGITS.share(range(10)))[0], "made for at most 600 unknowns, and the samples have 640"),
    (lambda: fedsgd(networks.convolutional(shape=(1, 8, 8), classes=10), DIGITS.share([0]))[0], "has ReLU"),
    (lambda: fedavg(lenet(), DIGITS.share([0]), lr=0.1, epochs=2, hidden=["lr"])[0], "needs the client's lr"),
    (
        lambda: fedsgd(models.mlp(shape=(1, 8, 8), classes=10, seed=0), DIGITS.share([0]))[0],
        "dense_read_off returns it",
    ),
    (
        lambda: fedavg(lenet(), DIGITS.share([0]), lr=0.1, recipe=LocalTraining(optimiser="adam"))[0],
        "steps of Adam are little more than signs",
    ),
]


@pytest.mark.parametrize(("observe", "reason"), REFUSED)
def test_it_does_not_apply_elsewhere_and_gives_the_reason(observe, reason):
    observation = observe()
    assert not fits(observation).applies
    assert reason in fits(observation).reason
    with pytest.raises(MissingKnowledge, match="Use inverting_gradients"):
        attacks.gauss_newton()(observation)


def test_a_forecast_counts_starts_and_fewer_starts_take_less():
    observation, _ = fedsgd(lenet(), DIGITS.share([0]))
    attack = attacks.gauss_newton(starts=8)
    assert attack.scaled(0.5).starts == 4
    assert attack.scaled(0.01).starts == 1
    assert attack.forecast(observation) > 0
