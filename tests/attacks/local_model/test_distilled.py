"""Algorithm 2 with dummy samples as the update map."""

import pytest
import torch

from leakgauge.attacks.local_model import Distilled, GlobalModel, LastReturned
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum, train_alone
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched

QUICK = {"samples": 16, "steps": 60, "training": 40}


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}], ids=["plain", "batch norm"])
def test_dummy_samples_lead_nearer_to_the_local_model(options):
    clients = table_clients(rows=60)
    model = network(**options)
    rounds = watched(model, clients, rounds=30, lr=0.2)[0]
    alone = train_alone(model, clients[0], lr=0.2, epochs=300)

    def loss(found):
        return float(found.losses(clients[0].inputs, clients[0].targets).mean())

    found = Distilled(**QUICK)(rounds)
    assert loss(found) < loss(GlobalModel()(rounds))
    assert 0 < found.figures["held_out_error"] < 1
    assert found.figures["steps"] > 0
    assert alone.losses[-1] < loss(found)


def test_samples_that_explain_nothing_leave_the_last_model_as_it_is():
    rounds = watched(network(), table_clients(), rounds=12)[0]
    found = Distilled(samples=2, steps=1, lr=100.0, training=5)(rounds)
    assert found.figures["held_out_error"] >= 0.999
    assert "the last model known" in found.outcome
    assert torch.equal(flatten(found.weights), flatten(LastReturned()(rounds).weights))


def test_the_same_seed_gives_the_same_model():
    rounds = watched(network(), table_clients(), rounds=12)[0]
    tiny = Distilled(samples=6, steps=5, training=5)
    first, second, other = (tiny(rounds, seed=seed).weights for seed in (0, 0, 1))
    assert torch.equal(flatten(first), flatten(second))
    assert not torch.equal(flatten(first), flatten(other))


def test_regressions_are_distilled_too():
    clients = linear_clients(4)
    rounds = watched(linear(4), clients, rounds=30, epochs=2)[0]
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    found = Distilled(samples=24, steps=150, training=100, training_lr=0.05)(rounds)
    assert (flatten(found.weights) - optimum).norm() < (flatten(LastReturned()(rounds).weights) - optimum).norm()
