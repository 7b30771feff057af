"""Adam's steps hold the only sample of a client, and the attack estimates its own error."""

import math
import re

import pytest
import torch
from torch import nn

from leakgauge import data
from leakgauge.attacks.analytic.adam_layer import Rows, fit_line, fit_one_step, noise_of, rounding
from leakgauge.attacks.analytic.adam_message import AdamMessage
from leakgauge.attacks.analytic.adam_read_off import adam_read_off, fits
from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences.noise import GaussianNoise
from leakgauge.models import mlp
from tests.attacks.analytic.cases import DIGITS, NORMALISED, dense

TABLE = data.load("breast_cancer")


def message(model, digits=DIGITS, *, row=0, samples=1, optimiser="adam", lr=1e-3, epochs=1, options=None, **recipe):
    """Return the message of a client that trains with Adam on one sample."""
    training = LocalTraining(optimiser=optimiser, **recipe)
    share = digits.share(range(row, row + samples))
    return fedavg(model, share, lr=lr, epochs=epochs, recipe=training, **(options or {}))


def errors(observation, truth):
    """Return the relative error of the returned sample, and the attacker's estimate of it."""
    result = adam_read_off()(observation, progress=False)
    assert (result.outcome.kind == "converged") == ("exactly" in str(result.outcome))
    assert len(result.samples) == 1
    assert result.labels is None or torch.equal(result.labels, truth.targets)
    expected = observation.data.normalise(truth.inputs).double()
    found = observation.data.normalise(result.samples).double()
    estimate = float(re.search(r"relative error of (\S+)$", str(result.outcome)).group(1))
    return float((found - expected).norm() / expected.norm()), estimate


def refused(observation):
    fit = fits(observation)
    assert not fit.applies
    return fit.reason


ONE_STEP = {
    "ReLU": lambda row: message(dense(128, 64, seed=row), row=row),
    "GELU": lambda row: message(dense(96, activation=nn.GELU, seed=row), row=row),
    "tanh, AdamW": lambda row: message(
        dense(64, 32, activation=nn.Tanh, seed=row), row=row, optimiser="adamw", weight_decay=0.01
    ),
    "normalised": lambda row: message(dense(128, 64, seed=row), NORMALISED, row=row),
    "hidden learning rate": lambda row: message(dense(128, 64, seed=row), row=row, options={"hidden": ["lr"]}),
    "clipped": lambda row: message(dense(128, 64, seed=row), row=row, clip_norm=0.1),
    "weight decay": lambda row: message(dense(128, 64, seed=row), row=row, weight_decay=1e-4),
    "table": lambda row: message(
        mlp(shape=TABLE.spec.shape, classes=2, hidden=(128, 64), seed=row), TABLE, row=row, lr=3e-3
    ),
}
SEVERAL_STEPS = {
    "ReLU, 2": lambda row: message(dense(80, 32, seed=row), row=row, epochs=2),
    "SiLU, AdamW, 3": lambda row: message(
        dense(48, activation=nn.SiLU, seed=row), row=row, epochs=3, optimiser="adamw", weight_decay=0.01
    ),
    "GELU, cosine, clipped, FedProx, 3": lambda row: message(
        dense(48, activation=nn.GELU, seed=row), row=row, epochs=3, schedule="cosine", clip_norm=0.5, proximal=0.1
    ),
}


@pytest.mark.parametrize("make", ONE_STEP.values(), ids=ONE_STEP)
def test_one_step_shows_the_sample_and_the_error_is_known(make):
    error, estimate = errors(*make(3))
    assert error < 0.1
    assert error < 4 * estimate


@pytest.mark.parametrize("make", SEVERAL_STEPS.values(), ids=SEVERAL_STEPS)
def test_several_steps_show_the_sample_exactly(make):
    observation, truth = make(5)
    error, estimate = errors(observation, truth)
    assert error < 4 * estimate < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("make", [*ONE_STEP.values(), *SEVERAL_STEPS.values()], ids=[*ONE_STEP, *SEVERAL_STEPS])
def test_the_estimated_error_is_honest(make):
    ratios = torch.tensor([error / estimate for error, estimate in (errors(*make(row)) for row in range(20, 26))])
    assert float(ratios.median()) < 2
    assert float(ratios.max()) < 5


@pytest.mark.parametrize(("digits", "samples"), [(DIGITS, 4), (NORMALISED, 2)], ids=["zeros", "normalised"])
def test_neurons_that_are_active_for_one_sample_show_it_in_a_batch(digits, samples):
    observation, truth = message(dense(256, 64), digits, row=samples, samples=samples)
    result = adam_read_off()(observation, progress=False)
    assert str(result.outcome).startswith(f"{len(result.samples)} of {samples} samples read off, with estimated")
    assert len(result.samples) >= samples - 1
    distances = torch.cdist(result.samples.flatten(1), truth.inputs.flatten(1))
    nearest = distances.argmin(1)
    assert len(nearest.unique()) == len(nearest)
    assert float((distances.amin(1) / truth.inputs[nearest].flatten(1).norm(dim=1)).max()) < 0.2
    assert torch.equal(result.labels, truth.targets[nearest])


def test_a_network_that_is_too_large_for_all_equations_is_read_with_a_larger_error(monkeypatch):
    monkeypatch.setattr("leakgauge.attacks.analytic.adam_read_off.WORK_LIMIT", 0)
    for epochs in (1, 3):
        observation, truth = message(dense(128, activation=nn.GELU, seed=1), row=1, epochs=epochs)
        error, estimate = errors(observation, truth)
        assert 1e-4 < error < 0.1
        assert error < 4 * estimate


def test_a_larger_eps_gives_more():
    results = [errors(*message(dense(64, 32, seed=2), row=2, eps=eps))[0] for eps in (1e-8, 1e-6)]
    assert results[1] < results[0] / 10


def test_noise_leaves_nothing_and_is_named(monkeypatch):
    noisy, _ = message(dense(128, 64), options={"defences": GaussianNoise(1e-5, on="update")})
    assert "do not agree" in refused(noisy)
    assert not len(adam_read_off()(noisy, progress=False).samples)
    monkeypatch.setattr("leakgauge.attacks.analytic.adam_read_off.STARTS", 1)
    noisy, _ = message(dense(16), epochs=2, options={"defences": GaussianNoise(1e-4, on="update")})
    result = adam_read_off(rounds=1)(noisy, progress=False)
    assert not len(result.samples)
    assert "nothing could be read off" in str(result.outcome)


def test_a_step_whose_gradients_are_far_larger_than_eps_hides_the_sample():
    table = data.load("diabetes")
    observation, _ = message(mlp(shape=table.spec.shape, classes=1, hidden=(32,), seed=0), table, lr=1e-5)
    assert "rounding" in refused(observation)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fedsgd(dense(32), DIGITS.share([0])), "made for steps of Adam"),
        (lambda: fedavg(dense(32), DIGITS.share([0]), lr=0.1), "made for steps of Adam"),
        (lambda: message(dense(32), samples=2, epochs=2), "made for one sample"),
        (lambda: message(dense(32), samples=2, weight_decay=0.1), "made for one sample"),
        (lambda: message(dense(32, activation=nn.GELU), samples=2), "active for all samples"),
        (lambda: message(dense(32), samples=30), "no neurons"),
        (lambda: message(dense(32), options={"hidden": ["epochs"]}), "needs the client's epochs"),
        (lambda: message(dense(32), epochs=2, options={"hidden": ["lr"]}), "needs the client's learning rate"),
        (
            lambda: message(dense(32), optimiser="adamw", weight_decay=0.01, options={"hidden": ["lr"]}),
            "weight decay and learning rate",
        ),
        (lambda: message(dense(32, bias=False)), "has no bias"),
        (lambda: message(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))), "no dense layer gets"),
    ],
)
def test_other_messages_are_refused_in_words(make, words):
    assert words in refused(make()[0])


def test_the_fits_recover_a_product_and_a_line():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.cat([torch.randn(20, dtype=torch.double, generator=draw), torch.ones(1, dtype=torch.double)])
    inputs[4] = 0.0
    deltas = torch.randn(30, 1, dtype=torch.double, generator=draw) * 0.01
    noise = torch.full((30, 21), 1e-9, dtype=torch.double)
    gradients = deltas * inputs
    fitted = fit_one_step(Rows(gradients / (gradients.abs() + 1e-6), noise))
    assert torch.allclose(fitted.values, inputs[:-1], rtol=1e-4)
    assert fitted.amplitude == pytest.approx(1)
    sizes = 2 + torch.rand(30, 1, dtype=torch.double, generator=draw) - 1e-4 / inputs.abs().clamp_min(1e-9)
    line = fit_line(Rows(deltas.sign() * inputs.sign() * sizes, noise))
    offsets = (1 / inputs.abs() - 1)[:-1]
    live = inputs[:-1] != 0
    ratio = line.offsets[live] / offsets[live]
    assert float(ratio.std() / ratio.mean().abs()) < 1e-3
    assert torch.equal(line.signs, inputs[:-1].sign())


def test_weight_decay_in_the_gradient_is_undone():
    draw = torch.Generator().manual_seed(1)
    gradients = 0.01 * torch.randn(12, 9, dtype=torch.double, generator=draw)
    pull = 0.003 * torch.randn(12, 9, dtype=torch.double, generator=draw)

    def step(gradient):
        return Rows(gradient / (gradient.abs() + 1e-9), torch.full_like(gradient, 1e-9))

    corrected = step(gradients + pull).corrected(gradients, pull)
    known = corrected.noise < 1
    expected, found = step(gradients).updates[known], corrected.updates[known]
    assert torch.equal(found.sign(), expected.sign())
    assert torch.allclose(1 - found.abs(), 1 - expected.abs(), rtol=0.02, atol=1e-10)
    assert torch.equal(~known, (gradients + pull).sign() != gradients.sign())
    gradients[2], gradients[:, 4] = 0.0, 0.0
    silent = step(gradients + pull).without_decayed(pull).updates == 0
    assert torch.equal(silent, gradients == 0)


def test_the_noise_is_the_rounding_of_weights():
    assert rounding(torch.tensor([1.0, 1.5, 0.1])).tolist() == [2**-23, 2**-23, 2**-27]
    weights = torch.rand(20_000, generator=torch.Generator().manual_seed(0)) + 1
    exact = weights.double() - 1e-3 * torch.rand(20_000, dtype=torch.double) + 1
    errors = (exact.float().double() - exact) / 1e-3
    expected = noise_of(weights, exact.float(), 1e-3, 1)
    assert float(errors.square().mean().sqrt()) == pytest.approx(float(expected.square().mean().sqrt()), rel=0.05)


def test_the_derivatives_are_those_of_differences():
    observation, truth = message(dense(8, activation=nn.GELU), epochs=2, eps=1e-3)
    inputs = truth.inputs.double().flatten()
    unknown = torch.nonzero(inputs).flatten()[:3]
    problem = AdamMessage(observation, truth.targets, inputs, unknown)
    point, step = inputs[unknown], 1e-6
    for index, row in enumerate(problem.derivatives(point)):
        move = step * torch.eye(3, dtype=torch.double)[index]
        difference = (problem.residual(point + move) - problem.residual(point - move)) / (2 * step)
        assert float((row - difference).norm() / difference.norm()) < 1e-4
    assert math.isclose(problem.misfit(point), 1, rel_tol=2)


def test_a_long_search_can_be_interrupted():
    model = mlp(shape=(1, 8, 8), classes=10, hidden=(48, 24), seed=0)
    recipe = LocalTraining(optimiser="adam", lr=1e-3)
    observation, _ = fedavg(model, data.load("digits").share([3]), epochs=20, recipe=recipe)
    calls = []

    def interrupting(step, total, loss):
        calls.append(step)
        raise KeyboardInterrupt

    result = adam_read_off()(observation, progress=interrupting)
    assert calls == [0]
    assert result.outcome.kind == "interrupted"
    assert len(result.samples) == len(result.labels) == 1
