"""The reference for LMRA: a client's training alone."""

import itertools

import pytest
import torch

from leakgauge import fedavg
from leakgauge.attacks.local_model import LocalModel
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum, train_alone
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients


def test_a_linear_client_arrives_at_the_closed_form():
    (client, *_) = linear_clients(4)
    alone = train_alone(linear(4), client, lr=0.1, epochs=4000, tolerance=1e-12)
    assert alone.converged
    assert alone.epochs < 4000
    torch.testing.assert_close(
        flatten(alone.weights), flatten(least_squares_optimum(client, bias=True)), atol=1e-4, rtol=0
    )
    assert alone.losses[-1] == pytest.approx(min(alone.losses), rel=1e-6)


def test_one_epoch_is_a_clients_round():
    (client, *_), model = table_clients(), network(batch_norm=True)
    before = flatten(dict(model.named_parameters())).clone()
    alone = train_alone(model, client, lr=0.1, epochs=1)
    observation, _ = fedavg(model, client, lr=0.1)
    torch.testing.assert_close(alone.weights, observation.returned)
    assert not alone.converged
    assert torch.equal(before, flatten(dict(model.named_parameters())))


def test_training_stops_where_the_loss_does():
    (client, *_), model = table_clients(), network()
    short = train_alone(model, client, lr=0.5, epochs=1000, tolerance=0.5, patience=10)
    assert short.converged
    assert len(short.losses) < 101
    assert min(short.losses[-10:]) >= 0.5 * short.losses[-11]
    assert train_alone(model, client, lr=0.5, epochs=30, tolerance=0.0, batch_size=7).epochs == 30


def test_adam_gets_there_sooner_and_stops_where_the_data_is_fitted():
    (client, *_), model = table_clients(), network()
    before = flatten(dict(model.named_parameters())).clone()
    plain = train_alone(model, client, lr=0.05, epochs=2000, batch_size=10)
    quick = train_alone(model, client, lr=0.05, epochs=2000, batch_size=10, adam=True, fitted=0.05)
    assert quick.converged
    assert quick.losses[-1] <= 0.05 * quick.losses[0] < quick.losses[-2]
    assert quick.epochs < plain.epochs
    found = LocalModel(model, quick.weights, {}, client.spec, "cross_entropy", "")
    assert float(found.losses(client.inputs, client.targets).mean()) == pytest.approx(quick.losses[-1], rel=1e-4)
    assert torch.equal(before, flatten(dict(model.named_parameters())))


def test_statistics_are_those_of_the_weights():
    (client, *_), model = table_clients(), network(batch_norm=True)
    alone = train_alone(model, client, lr=0.05, epochs=10, adam=True)
    settled, of_the_batch = (
        LocalModel(model, alone.weights, buffers, client.spec, "cross_entropy", "") for buffers in (alone.buffers, None)
    )
    own = client.inputs, client.targets
    torch.testing.assert_close(settled.losses(*own).mean(), of_the_batch.losses(*own).mean(), rtol=0.05, atol=0)


def test_the_model_of_the_lowest_loss_is_kept():
    (client, *_), model = table_clients(), network()
    wild = train_alone(model, client, lr=30.0, epochs=60, patience=5, tolerance=0.0)
    found = LocalModel(model, wild.weights, {}, client.spec, "cross_entropy", "")
    assert float(found.losses(client.inputs, client.targets).mean()) == pytest.approx(min(wild.losses), rel=1e-4)
    assert min(wild.losses) < wild.losses[-1]


def test_a_leap_away_is_not_convergence():
    (client, *_), model = table_clients(), network()
    wild = train_alone(model, client, lr=30.0, epochs=60, patience=1, tolerance=0.0)
    lowest = list(itertools.accumulate(wild.losses, min))
    leaps = sum(loss > 1.1 * low for loss, low in zip(wild.losses, lowest, strict=True))
    assert leaps > 10  # as many as would end it
    assert wild.epochs == 60
    assert not wild.converged


def test_what_has_no_optimum_is_refused():
    (client, *_) = table_clients()
    with pytest.raises(InvalidInput, match="Use train_alone"):
        least_squares_optimum(client, bias=True)
    with pytest.raises(InvalidInput, match="at least 1"):
        train_alone(network(), client, lr=0.1, epochs=0)
