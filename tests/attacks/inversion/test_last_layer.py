"""The last layer from which labels are inferred, and the models that have none."""

import pytest
import torch
from torch import nn

from leakgauge.attacks.inversion.label_counts import estimate_label_counts
from leakgauge.attacks.inversion.last_layer import last_linear
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.inversion.label_cases import cnn, estimate, half_the_errors, network, normalised
from tests.shared import digits


def test_the_last_layer_is_found_by_name():
    assert last_linear(network(), 10)[0] == "head"


@pytest.mark.parametrize(
    "tail",
    [[nn.Linear(64, 10), nn.BatchNorm1d(10)], [nn.Linear(64, 30), nn.Unflatten(1, (10, 3)), nn.AvgPool1d(3)]],
    ids=["ends in batch norm", "last linear layer of another size"],
)
def test_a_model_that_does_not_end_in_a_linear_layer_is_refused(tail):
    model = nn.Sequential(nn.Flatten(), *tail, nn.Flatten())
    observation, _ = fedsgd(model, digits().share(range(4)))
    with pytest.raises(MissingKnowledge, match=r"does not end in a linear layer with 10 outputs\. Supply them"):
        estimate(observation)


def test_a_frozen_last_layer_tells_nothing_and_is_refused():
    model = network()
    for parameter in model.head.parameters():
        parameter.requires_grad_(False)
    observation, _ = fedsgd(model, digits().share([4]))
    with pytest.raises(MissingKnowledge, match=r"labels cannot be inferred, because .* is not trained"):
        estimate(observation)


def test_a_bias_that_is_not_trained_is_not_read():
    model = cnn()
    model.head.bias.requires_grad_(False)
    observation, truth = fedavg(model, normalised(range(12)), lr=0.004, epochs=3, batch_size=4)
    assert half_the_errors(estimate(observation), truth) <= 1
    with pytest.raises(MissingKnowledge, match="'head', trains none"):
        estimate_label_counts(observation, generator(0), read="bias")


def test_without_a_bias_the_kernel_tells():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.Sigmoid(), nn.Linear(50, 10, bias=False))
    observation, truth = fedsgd(model, digits().share(range(12)))
    assert half_the_errors(estimate(observation), truth) <= 1
    single, truth = fedsgd(model, digits().share([3]))
    assert estimate(single).tolist() == truth.label_counts.tolist()


def test_without_a_bias_the_kernel_is_read_after_local_training_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10, bias=False))
    observation, truth = fedavg(model, digits().share(range(12)), lr=0.004, epochs=3, batch_size=4)
    found, kernel = (estimate_label_counts(observation, generator(0), read=read) for read in (None, "kernel"))
    assert torch.equal(found, kernel)
    assert int(found.sum()) == 12
    assert half_the_errors(found, truth) <= 2
    with pytest.raises(
        MissingKnowledge, match="cannot be read from the bias, because the last layer, '3', trains none"
    ):
        estimate_label_counts(observation, generator(0), read="bias")
