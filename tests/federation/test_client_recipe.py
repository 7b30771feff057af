"""The training settings of a client, their defaults and their limits."""

import pytest
import torch
from torch import nn

from leakgauge import Dataset, DataSpec, fedavg, fedsgd
from leakgauge.core.errors import InvalidInput
from tests.federation.networks import client, conv, linear, mlp


def test_one_full_batch_is_the_default_and_the_largest():
    model, data = conv(), client(4)
    for size in (None, 4, 99):
        observation, truth = fedavg(model, data, lr=0.1, batch_size=size)
        assert observation.training.batch_size == 4
        assert len(truth.order) == 1


def test_one_logit_for_two_classes_has_binary_cross_entropy_by_default():
    data = Dataset(torch.rand(4, 6), torch.tensor([0, 1, 0, 1]), DataSpec((6,), 2), "pairs")
    assert fedsgd(linear(), data)[0].training.loss == "binary_cross_entropy"
    assert fedsgd(linear(6, 2), data)[0].training.loss == "cross_entropy"
    with pytest.raises(InvalidInput, match="one output for two classes, which needs the loss 'binary_cross_entropy'"):
        fedsgd(linear(), data, loss="cross_entropy")


@pytest.mark.parametrize(
    ("targets", "outputs", "loss"),
    [
        (torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]), 3, "binary_cross_entropy"),
        (torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), 3, "cross_entropy"),
        (torch.tensor([[0.5, 1.0, 0.0], [1.0, 0.0, 0.0]]), 3, "mse"),
        (torch.tensor([[0, 1, 2], [1, 0, 0]]), 9, "cross_entropy"),
    ],
    ids=["labels", "one-hot rows", "numbers", "classes in places"],
)
def test_the_default_loss_of_several_entries_fits_their_values(targets, outputs, loss):
    model = linear(6, outputs)
    if outputs == 9:
        model = nn.Sequential(model, nn.Unflatten(1, (3, 3)))
    data = Dataset(torch.rand(2, 6), targets, DataSpec((6,), None), "several")
    observation, truth = fedsgd(model, data)
    assert observation.training.loss == loss
    assert observation.data.target_shape == (3,)
    granted = fedsgd(model, data, granted=["labels"])[0]
    assert torch.equal(granted.labels, truth.targets)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -0.1}, "lr must be above 0"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"lr": 0.1, "epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ({"lr": 0.1, "batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"lr": 0.1, "batch_size": -2}, "batch_size must be a whole number of at least 1, not -2"),
        ({"lr": 0.1, "batch_size": 1.5}, "batch_size must be a whole number"),
        ({"lr": 0.1, "batch_size": "all"}, "batch_size must be a whole number"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_impossible_recipes_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        fedavg(mlp(), client(4), **options)
