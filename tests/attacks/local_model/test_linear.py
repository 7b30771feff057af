"""The optimum of a linear regression: exact where the paper proves it, bounded where the paper bounds it."""

import pytest
import torch

from leakgauge.attacks.local_model import Exact, LastReturned, LeastSquares
from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum
from tests.attacks.local_model.cases import distance, linear, linear_clients, network, table_clients, watched


@pytest.mark.parametrize("epochs", [1, 5, 20])
def test_d_plus_one_rounds_of_full_batches_give_the_optimum(epochs):
    clients = linear_clients(9)
    rounds = watched(linear(9), clients, rounds=40, epochs=epochs, clients_per_round=3)[0][:11]
    assert len(rounds) == 11  # nine weights and a bias, and one
    found = Exact()(rounds)
    assert distance(found, clients[0]) < 1e-9
    assert found.uncertainty < 1e-6
    assert "determined" in found.outcome
    assert found.figures["rank"] == 10


def test_a_hundred_parameters():
    clients = linear_clients(99, clients=4)
    rounds = watched(linear(99), clients, rounds=250, epochs=2, clients_per_round=2, lr=0.05)[0][:101]
    assert len(rounds) == 101
    assert distance(Exact()(rounds), clients[0]) < 1e-6


def test_the_recipe_need_not_be_known():
    clients = linear_clients(4)
    rounds = watched(
        linear(4), clients, rounds=20, clients_per_round=3, hidden=("lr", "epochs", "batch_size", "samples")
    )[0]
    assert distance(Exact()(rounds), clients[0]) < 1e-9


def test_gradients_do_as_well_as_weights():
    from leakgauge import fedsgd

    (client, *_), draw = linear_clients(4), torch.Generator().manual_seed(1)
    rounds = []
    for number in range(6):
        model = linear(4)
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(torch.randn(value.shape, generator=draw))
        rounds.append(fedsgd(model, client, round=number)[0])
    assert distance(Exact()(rounds), client) < 1e-9
    with pytest.raises(MissingKnowledge, match="learning rate"):
        LastReturned()(rounds)
    stepped = LastReturned()([one.knowing(lr=0.5) for one in rounds])
    expected = flatten(rounds[-1].sent) - 0.5 * flatten(rounds[-1].gradient)
    torch.testing.assert_close(flatten(stepped.weights), expected)


def test_too_few_rounds_are_reported_with_an_uncertainty():
    clients = linear_clients(9)
    rounds = watched(linear(9), clients, rounds=40, epochs=5, clients_per_round=3)[0]
    few = Exact()(rounds[:5])
    assert "too few rounds: 5 show the update in 4 of 10" in few.outcome
    assert few.uncertainty >= few.figures["update_left"] > 1e-6
    assert distance(few, clients[0]) > 1e-3
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    error = float((flatten(few.weights) - optimum).norm())
    assert few.uncertainty / 5 < error < 5 * few.uncertainty


def test_rounds_in_a_smaller_space_are_reported():
    clients = linear_clients(5)
    for client in clients:
        client.inputs[:, 3] = 0  # a column that never moves
    rounds = watched(linear(5), clients, rounds=40, clients_per_round=3)[0]
    found = Exact(tolerance=1e-10)(rounds)
    assert "rank-deficient" in found.outcome
    assert found.figures["rank"] == 5


def test_noise_falls_with_the_root_of_the_rounds_and_stays_below_the_bound():
    clients = linear_clients(3, clients=8, rows=24)
    rounds = watched(linear(3), clients, rounds=600, batch_size=12, clients_per_round=5, lr=0.05)[0]
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    errors = {}
    for count in (32, 320):
        parts = [rounds[first : first + count] for first in range(20, len(rounds) - count + 1, count)] or [rounds]
        distances = []
        for part in parts[:8]:
            found = LeastSquares()(part)
            distances.append(float((flatten(found.weights) - optimum).norm()))
            assert distances[-1] < found.uncertainty
        errors[count] = sum(distances) / len(distances)
    assert 1.6 < errors[32] / errors[320] < 7  # the root of ten is 3.2


def test_regression_refuses_few_rounds_and_large_models():
    clients = linear_clients(5)
    rounds = watched(linear(5), clients, rounds=5, batch_size=4)[0]
    with pytest.raises(InvalidInput, match="pass at least 8"):
        LeastSquares()(rounds)
    with pytest.raises(InvalidInput, match="probability"):
        LeastSquares(failure=0)
    large = watched(network(), table_clients(), rounds=2)[0]
    assert len(flatten(large[0].sent)) < 5000
    with pytest.raises(InvalidInput, match="use Secant"):
        LeastSquares()(watched(wide(), table_clients(), rounds=2)[0])


def wide():
    from leakgauge import models

    return models.build("mlp", shape=[6], classes=2, hidden=[700], seed=0)


def test_small_batches_do_not_throw_the_estimate_far_away():
    clients = linear_clients(11, rows=300)
    rounds = watched(linear(11), clients, rounds=30, clients_per_round=4, batch_size=32, lr=0.01)[0]
    assert distance(LeastSquares(penalised=False)(rounds), clients[0]) > 1  # further than the zero model
    found = LeastSquares()(rounds)
    assert distance(found, clients[0]) < 0.5 * distance(LastReturned()(rounds), clients[0])
    assert found.figures["penalty"] > 0
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    assert found.uncertainty > float((flatten(found.weights) - optimum).norm())


def test_without_noise_there_is_no_penalty():
    clients = linear_clients(4)
    rounds = watched(linear(4), clients, rounds=40, clients_per_round=3)[0]
    found = LeastSquares()(rounds)
    assert distance(found, clients[0]) < 1e-8


def test_rounds_of_small_batches_are_not_called_determined():
    clients = linear_clients(4, rows=60)
    rounds = watched(linear(4), clients, rounds=60, clients_per_round=3, batch_size=8)[0]
    found = Exact()(rounds)
    assert "no single linear map explains the rounds" in found.outcome
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    assert found.uncertainty > 0.1 * float((flatten(found.weights) - optimum).norm())
