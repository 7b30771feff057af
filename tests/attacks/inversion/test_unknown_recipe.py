"""What is assumed of a recipe that is known in part: the last layer's bias tells the number of steps."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import attacks, data, models
from leakgauge.attacks.inversion.unknown_recipe import complete_recipe, estimate_steps
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits


def seven_classes():
    """Return twenty normalised samples of seven classes. Three classes are absent."""
    normalised = replace(digits(), spec=replace(digits().spec, mean=(0.305,), std=(0.376,)))
    return normalised.share([row for row in range(100) if int(digits().targets[row]) not in (3, 7, 8)][:20])


def network(seed=0):
    return models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[8, 16], dense=32, seed=seed)


def trained(*, batch_size=5, epochs=4, lr=0.004, model=None, hidden=(), **options):
    return fedavg(
        model or network(),
        seven_classes(),
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        hidden=hidden,
        **options,
    )[0]


def steps(observation):
    return estimate_steps(observation, generator(0, "recipe"))


def completed(observation):
    return complete_recipe(observation, generator(0, "recipe")).training


@pytest.mark.parametrize(("batch_size", "epochs"), [(5, 2), (5, 5), (4, 3), (20, 6), (1, 3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_number_of_steps_is_told_within_a_quarter(batch_size, epochs, seed):
    observation = trained(batch_size=batch_size, epochs=epochs, model=network(seed), hidden=["batch_size", "epochs"])
    found, truth = steps(observation), -(-20 // batch_size) * epochs
    assert found is not None
    assert abs(found - truth) <= truth / 4


def test_an_unknown_batch_size_follows_from_the_steps_and_the_epochs():
    training = completed(trained(hidden=["batch_size"]))
    assert training.epochs == 4
    assert training.batch_size in (4, 5, 6)


def test_unknown_epochs_follow_from_the_steps_and_the_batch_size():
    training = completed(trained(hidden=["epochs"]))
    assert training.batch_size == 5
    assert training.epochs in (3, 4, 5)


def test_where_both_are_unknown_every_step_is_an_epoch():
    hidden = trained(hidden=["batch_size", "epochs"])
    training = completed(hidden)
    assert (training.batch_size, training.epochs) == (20, steps(hidden))


@pytest.mark.parametrize(
    ("hide", "batch_size", "epochs"), [(["batch_size"], 20, 4), (["epochs"], 5, 1), (["batch_size", "epochs"], 20, 1)]
)
def test_where_the_steps_cannot_be_told_the_simplest_is_assumed(hide, batch_size, epochs):
    training = completed(trained(hidden=["lr", *hide]))
    assert (training.batch_size, training.epochs, training.lr) == (batch_size, epochs, None)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_guess_is_a_recipe_that_can_be(batch_size):
    """With one step a sample, or ragged batches, a batch is never empty nor larger than the data."""
    training = completed(trained(batch_size=batch_size, epochs=2, hidden=["batch_size"]))
    assert training.batch_size is not None
    assert 1 <= training.batch_size <= 20
    assert training.steps == pytest.approx(-(-20 // batch_size) * 2, rel=0.35)


def test_what_is_known_stays_as_it_is():
    known = trained()
    assert complete_recipe(known, generator(0)) is known
    gradient, _ = fedsgd(network(), seven_classes(), hidden=["batch_size", "epochs"])
    assert complete_recipe(gradient, generator(0)) is gradient


@pytest.mark.parametrize("hide", [["batch_size"], ["epochs"], ["batch_size", "epochs"]], ids=str)
def test_the_number_of_samples_is_not_guessed(hide):
    with pytest.raises(MissingKnowledge, match=r"needs the client's samples, .*knowing\(samples="):
        completed(trained(hidden=["samples", *hide]))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)),
    ],
    ids=["no bias", "no linear layer at the end"],
)
def test_a_model_that_does_not_tell(model):
    assert steps(trained(model=model)) is None


def test_a_frozen_last_layer_does_not_tell():
    model = network()
    for parameter in model.head.parameters():
        parameter.requires_grad_(False)
    assert steps(trained(model=model)) is None


def test_a_frozen_bias_does_not_tell():
    model = network()
    model.head.bias.requires_grad_(False)
    assert steps(trained(model=model)) is None


def test_a_regression_and_a_gradient_do_not_tell():
    table = data.load("diabetes").share(range(4))
    model = models.mlp(shape=table.spec.shape, classes=1, hidden=(8,), seed=0)
    assert steps(fedavg(model, table, lr=0.01)[0]) is None
    assert steps(fedsgd(network(), seven_classes())[0]) is None


@pytest.mark.parametrize("hidden", ["samples", "lr"])
@pytest.mark.parametrize("grant", [[], ["labels"]], ids=str)
@pytest.mark.parametrize("name", ["dlf", "dlf_paper"])
def test_what_dlf_cannot_do_without_is_named(name, hidden, grant):
    observation = trained(hidden=[hidden], granted=grant)
    with pytest.raises(MissingKnowledge, match=f"needs the client's {hidden}, .*knowing\\({hidden}="):
        attacks.build(name, steps=1)(observation, progress=False)


@pytest.mark.parametrize("hide", [["batch_size"], ["epochs"], ["batch_size", "epochs"]], ids=str)
def test_dlf_goes_on_with_what_it_guessed(hide):
    observation = trained(batch_size=10, epochs=2, hidden=hide)
    result = attacks.build("dlf_paper", steps=1)(observation, progress=False)
    assert result.samples.shape == (20, 1, 8, 8)
    assert bool(torch.isfinite(result.samples).all())
    assert result.epochs is not None
    assert len(result.epochs) == completed(observation).epochs
