"""The client's own model: exact where the paper proves it, bounded where it bounds it."""

import math
from dataclasses import replace

import pytest
import torch

from leakgauge.attacks.local_model import Exact, GlobalModel, LastReturned, LeastSquares, Messages, Secant
from leakgauge.attacks.local_model.methods import held_out_error, shorter_steps
from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched


def distance(model, client):
    """How far a model is from the client's optimum, relative to its norm."""
    optimum = least_squares_optimum(client, bias=True)
    return float((flatten(model.weights) - flatten(optimum)).norm() / flatten(optimum).norm())


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


def test_too_few_rounds_say_so_and_the_uncertainty_is_no_less_than_what_is_left():
    clients = linear_clients(9)
    rounds = watched(linear(9), clients, rounds=40, epochs=5, clients_per_round=3)[0]
    few = Exact()(rounds[:5])
    assert "too few rounds: 5 show the update in 4 of 10" in few.outcome
    assert few.uncertainty >= few.figures["update_left"] > 1e-6
    assert distance(few, clients[0]) > 1e-3
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    error = float((flatten(few.weights) - optimum).norm())
    assert few.uncertainty / 5 < error < 5 * few.uncertainty


def test_rounds_of_a_smaller_space_say_so():
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


def test_regression_refuses_what_it_cannot_do():
    clients = linear_clients(5)
    rounds = watched(linear(5), clients, rounds=5, batch_size=4)[0]
    with pytest.raises(InvalidInput, match="give at least 8"):
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


def test_the_secant_finds_the_optimum_of_a_linear_client():
    clients = linear_clients(5)
    rounds = watched(linear(5), clients, rounds=60, epochs=3, clients_per_round=3)[0]
    proxies = {type(one).__name__: distance(one(rounds), clients[0]) for one in (GlobalModel(), LastReturned())}
    found = Secant()(rounds)
    assert distance(found, clients[0]) < 0.02 * min(proxies.values())
    assert found.figures["held_out_error"] < 0.01


def test_the_secant_stays_with_the_last_returned_model_where_updates_are_noise():
    clients = linear_clients(3)
    draw = torch.Generator().manual_seed(0)
    rounds = []
    for one in watched(linear(3), clients, rounds=30)[0]:
        noise = {name: torch.randn(v.shape, generator=draw, dtype=v.dtype) for name, v in one.sent.items()}
        rounds.append(replace(one, returned={name: one.sent[name] + value for name, value in noise.items()}))
    kept = min(rounds, key=lambda one: float(Messages.read([one]).updates.norm()))
    rounds[-1] = replace(
        rounds[-1], returned={n: rounds[-1].sent[n] + kept.returned[n] - kept.sent[n] for n in kept.sent}
    )
    found, last = Secant()(rounds), LastReturned()(rounds)
    torch.testing.assert_close(flatten(found.weights), flatten(last.weights))


def test_held_out_error_is_that_of_a_plain_ridge_regression():
    draw = torch.Generator().manual_seed(0)
    sent, updates = (torch.randn(12, 7, generator=draw, dtype=torch.double) for _ in range(2))
    total = 0.0
    x, y = sent - sent.mean(0), updates - updates.mean(0)
    for fold in range(3):
        out = torch.arange(12) % 3 == fold
        solved = torch.linalg.solve(x[~out].T @ x[~out] + 0.7 * torch.eye(7).double(), x[~out].T @ y[~out])
        total += float((x[out] @ solved - y[out]).square().sum())
    assert held_out_error(sent, updates, 0.7, 3) == pytest.approx(math.sqrt(total / 12))


def test_steps_grow_until_they_reach_what_is_wanted():
    draw = torch.Generator().manual_seed(0)
    mapped, moved, update = (torch.randn(*shape, generator=draw).double() for shape in ((4, 9), (4, 9), (9,)))
    arguments = (mapped @ mapped.T, mapped @ update, moved @ moved.T, float(update.norm()))
    (none,) = shorter_steps(*arguments, 10.0)
    assert not none.any()
    least = float((update - mapped.T @ torch.linalg.lstsq(mapped.T, update[:, None]).solution[:, 0]).norm())
    wanted = (least + float(update.norm())) / 2
    left = [float((update + step @ mapped).norm()) for step in shorter_steps(*arguments, wanted)]
    assert left == sorted(left, reverse=True)
    assert least < left[-1] <= wanted < left[-2]


def test_a_secant_does_not_go_back_to_where_updates_were_small():
    template, *_ = watched(linear(3), linear_clients(3), rounds=1)[0]
    first = {name: torch.ones_like(value) for name, value in template.sent.items()}
    rounds = []
    for number in range(6):  # the further from zero, the faster away from it: zero is no optimum
        sent = {name: value * 1.1**number for name, value in first.items()}
        returned = {name: value * 1.1 for name, value in sent.items()}
        rounds.append(replace(template, sent=sent, returned=returned, round=number))
    assert torch.allclose(flatten(Secant()(rounds).weights), flatten(LastReturned()(rounds).weights))


def test_rounds_must_be_of_one_client_and_one_kind():
    clients = linear_clients(3)
    federation = watched(linear(3), clients, rounds=3, watch=(0, 1))
    with pytest.raises(InvalidInput, match="'client-0' and of 'client-1'"):
        Secant()([federation[0][0], federation[1][0]])
    with pytest.raises(InvalidInput, match="there are no observations"):
        Secant()([])
    with pytest.raises(InvalidInput, match="a list of observations"):
        Secant()(federation[0][0])
    with pytest.raises(InvalidInput, match="at least 3 rounds"):
        Secant()(federation[0][:2])


def test_rounds_may_come_in_any_order_and_are_left_alone():
    clients = linear_clients(3)
    rounds = watched(linear(3), clients, rounds=12, clients_per_round=2)[0]
    before = [flatten(one.returned).clone() for one in rounds]
    forward, backward = Exact()(rounds), Exact()(rounds[::-1])
    torch.testing.assert_close(forward.weights, backward.weights)
    assert all(torch.equal(flatten(one.returned), kept) for one, kept in zip(rounds, before, strict=True))
    assert forward.client == "client-0"
    assert forward.method == "Exact(tolerance=1e-13)"


def test_a_local_model_gives_what_the_network_gives():
    (client, *_), model = table_clients(), network(batch_norm=True)
    open_rounds = watched(model, [client], rounds=3)[0]
    found = LastReturned()(open_rounds)
    last = open_rounds[-1]
    model.load_state_dict({**last.returned, **last.returned_buffers})
    torch.testing.assert_close(found(client.inputs), model.eval()(client.inputs))
    hidden = LastReturned()(watched(network(batch_norm=True), [client], rounds=3, share_statistics=False)[0])
    assert hidden.buffers is None
    model = network(batch_norm=True)
    model.load_state_dict(hidden.weights, strict=False)
    torch.testing.assert_close(hidden(client.inputs), model.train()(client.inputs))
    torch.testing.assert_close(
        found.losses(client.inputs, client.targets),
        torch.nn.functional.cross_entropy(found(client.inputs), client.targets, reduction="none"),
    )
