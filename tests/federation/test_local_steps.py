"""Clients that train for a number of batches and stop within an epoch."""

import pytest
import torch

import leakgauge as lg
from leakgauge.attacks.inversion.update_models import EpochInterpolation, FullSimulation
from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.params import flatten
from leakgauge.federation.defences.local_work import LocalWork
from tests.federation.networks import CLASSES, client, linear

TEN = LocalTraining(local_steps=10)


def test_ten_batches_are_a_plain_loop_over_ten_batches():
    model, data = linear(16, CLASSES), client(7)
    observation, truth = lg.fedavg(model, data, lr=0.1, batch_size=3, momentum=0.9, recipe=TEN, seed=4)
    assert [len(rows) for rows in truth.order] == [3, 3, 1, 3, 3, 1, 3, 3, 1, 3]
    reference = linear(16, CLASSES)
    reference.load_state_dict(model.state_dict())
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for rows in truth.order:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(
            reference(data.spec.normalise(data.inputs[rows])), data.targets[rows]
        ).backward()
        optimiser.step()
    expected = flatten(dict(reference.named_parameters())).detach()
    torch.testing.assert_close(flatten(observation.returned), expected)
    training = observation.training
    assert (training.epochs, training.steps, training.finishes_epochs) == (4, 10, False)
    assert training.applied_gradients == pytest.approx(sum((1 - 0.9 ** (10 - step)) / 0.1 for step in range(10)))


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5}]
)
def test_the_kept_share_of_the_weights_is_that_of_sgd_without_gradients(options):
    weight = torch.ones(1, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.1, weight_decay=0.2, **options)
    for _ in range(10):
        weight.grad = torch.zeros_like(weight)
        optimiser.step()
    training = LocalTraining(lr=0.1, weight_decay=0.2, samples=6, batch_size=3, local_steps=10, **options)
    assert training.kept_share == pytest.approx(weight.item())
    assert LocalTraining().kept_share == 1.0


def test_whole_epochs_are_the_same_as_epochs():
    model, data = linear(16, CLASSES), client(6)
    steps, _ = lg.fedavg(model, data, lr=0.1, batch_size=3, recipe=LocalTraining(local_steps=4), seed=1)
    epochs, _ = lg.fedavg(model, data, lr=0.1, batch_size=3, epochs=2, seed=1)
    assert torch.equal(flatten(steps.returned), flatten(epochs.returned))
    assert steps.training.finishes_epochs


def test_clients_of_different_sizes_take_the_same_number_of_steps():
    clients = [client(samples) for samples in (2, 5, 11)]
    rounds = lg.run_federation(
        linear(16, CLASSES), clients, rounds=2, lr=0.1, batch_size=4, recipe=TEN, watch=range(3)
    ).observations
    assert [rounds[index][0].training.steps for index in range(3)] == [10, 10, 10]
    assert [rounds[index][0].training.epochs for index in range(3)] == [10, 5, 4]


def test_a_simulation_with_the_true_samples_gives_the_update():
    model, data = linear(16, CLASSES), client(6)
    recipe = LocalTraining(local_steps=3)
    observation, truth = lg.fedavg(model, data, lr=0.1, batch_size=4, recipe=recipe, seed=2)
    first, second = torch.cat(truth.order[:2]), truth.order[2]
    rest = torch.tensor([row for row in range(6) if row not in second.tolist()])
    rows = torch.cat((first, second, rest))
    simulated = FullSimulation(per_epoch=True).begin(observation, functional=False)
    predicted = simulated.predict(data.spec.normalise(data.inputs[rows]), data.targets[rows])
    torch.testing.assert_close(flatten(predicted), flatten(observation.summed_gradient()), atol=1e-5, rtol=1e-4)
    with pytest.raises(InvalidInput, match="simulates whole epochs"):
        EpochInterpolation(2).begin(observation, functional=False)


@pytest.mark.parametrize("name", ["epochs", "local_steps"])
def test_epochs_and_local_steps_are_hidden_together(name):
    observation, _ = lg.fedavg(linear(16, CLASSES), client(6), lr=0.1, batch_size=4, recipe=TEN, hidden=[name])
    assert observation.training.epochs is None
    assert observation.training.local_steps is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 2, "recipe": TEN}, "has epochs and local_steps"),
        ({"recipe": LocalTraining(local_steps=3), "granted": ["label_batches"]}, "stops within an epoch"),
    ],
)
def test_what_does_not_go_with_local_steps(options, words):
    with pytest.raises(InvalidInput, match=words):
        lg.fedavg(linear(16, CLASSES), client(6), lr=0.1, batch_size=4, **options)


def test_a_recipe_does_not_contradict_itself():
    with pytest.raises(InvalidInput, match="begin 5 epochs of 2 batches, not 3"):
        LocalTraining(local_steps=10, epochs=3, batch_size=4, samples=6)
    with pytest.raises(InvalidInput, match="cannot be combined with accumulation"):
        LocalTraining(local_steps=10, accumulation=2)


def test_local_work_replaces_epochs_or_keeps_the_steps():
    training = LocalTraining(local_steps=10, batch_size=4, samples=6)
    assert LocalWork(batch_size=2).on_recipe(training).steps == 10
    changed = LocalWork(epochs=2).on_recipe(training)
    assert (changed.steps, changed.local_steps) == (4, None)
