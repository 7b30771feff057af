"""The sum of several clients' messages, as a server under secure aggregation sees it."""

import pytest
import torch

from leakgauge import models
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from leakgauge.federation.aggregation import aggregate
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import SecureAggregation
from leakgauge.federation.rounds import run_federation
from tests.shared import digits


def shares():
    return [digits().share(range(3)), digits().share(range(3, 8))]


def network(seed=0):
    return models.mlp(shape=(1, 8, 8), classes=10, hidden=[8], seed=seed)


def test_the_mean_of_gradients_is_the_gradient_of_all_samples():
    whole, _ = fedsgd(network(), digits().share(range(8)), granted=["labels", "label_counts"])
    seen, truth = aggregate([fedsgd(network(), one, granted=["labels", "label_counts"]) for one in shares()])
    assert torch.allclose(flatten(seen.difference()), flatten(whole.difference()), atol=1e-6)
    assert seen.training.samples == seen.training.batch_size == 8
    assert torch.equal(seen.labels, whole.labels)
    assert torch.equal(seen.label_counts, whole.label_counts)
    assert torch.equal(truth.inputs, digits().share(range(8)).inputs)
    assert seen.client == "sum of 2 clients"


def test_the_mean_of_weights_is_nearly_one_large_client():
    parts = [
        fedavg(network(), one, lr=0.01, epochs=2, batch_size=1) for one in (shares()[0], digits().share(range(3, 6)))
    ]
    seen, _ = aggregate(parts)
    expected = (flatten(parts[0][0].returned) + flatten(parts[1][0].returned)) / 2
    assert torch.allclose(flatten(seen.returned), expected, atol=1e-7)
    assert (seen.training.samples, seen.training.batch_size, seen.training.epochs) == (6, 2, 2)


def test_messages_of_other_rounds_are_refused():
    with pytest.raises(InvalidInput, match="same round"):
        aggregate([fedsgd(network(), shares()[0]), fedsgd(network(1), shares()[1])])
    with pytest.raises(InvalidInput, match="no messages"):
        aggregate([])


def test_a_federation_under_secure_aggregation_shows_only_the_sum():
    options = {"rounds": 2, "lr": 0.1, "batch_size": 2, "watch": [0], "together": False}
    plain = run_federation(network(), shares(), **options)
    hidden = run_federation(network(), shares(), **options, defences=SecureAggregation(2))
    assert torch.equal(flatten(plain.weights), flatten(hidden.weights))
    seen, alone = hidden.observations[0][0], plain.observations[0][0]
    assert seen.training.samples == 8
    assert not torch.allclose(flatten(seen.returned), flatten(alone.returned), atol=1e-6)
    assert torch.allclose(flatten(seen.returned), flatten(hidden.observations[0][1].sent), atol=1e-6)


def test_too_few_clients_hide_nothing():
    with pytest.raises(InvalidInput, match="gets the messages of 2"):
        run_federation(network(), shares(), rounds=1, lr=0.1, defences=SecureAggregation(3))
    with pytest.raises(InvalidInput, match="run_federation"):
        fedsgd(network(), shares()[0], defences=SecureAggregation(2))
