"""Rounds of one client, and the model that an attack makes of them."""

import pytest
import torch

from leakgauge.attacks.local_model import Exact, GlobalModel, LastReturned, Secant
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched


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


def test_a_local_model_returns_the_outputs_of_the_network():
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


@pytest.mark.parametrize("attack", [GlobalModel(), LastReturned()], ids=["global", "last returned"])
def test_a_model_does_not_keep_the_messages_of_all_rounds(attack):
    weights = attack(watched(network(), table_clients(), rounds=20)[0]).weights
    held = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in weights.values()}
    assert sum(held.values()) == sum(value.nbytes for value in weights.values())
