"""Which client holds a record: by the smallest loss, by a vote over rounds, and by where its inputs lie."""

from dataclasses import replace

import pytest
import torch

from leakscope.errors import InvalidInput
from leakscope.federated.alone import train_alone
from leakscope.inference import LastReturned, LocalModel, source
from tests.inference.cases import network, table_clients, watched


def test_the_smallest_loss_names_the_source():
    clients, model = table_clients(rows=60), network()
    local = []
    for client in clients:
        alone = train_alone(model, client, lr=0.5, epochs=200)
        local.append(LocalModel(model, alone.weights, {}, client.spec, "cross_entropy", ""))
    shares = []
    for number, client in enumerate(clients):
        found = source.by_loss(local, client.inputs, client.targets)
        losses = torch.stack([one.losses(client.inputs, client.targets) for one in local])
        assert torch.equal(found.choice, losses.argmin(0))
        shares.append(float((found.choice == number).double().mean()))
    assert sum(shares) / len(shares) > 0.4  # a third by chance


def test_the_vote_counts_rounds_that_all_took_part_in():
    clients, model = table_clients(), network()
    rounds = watched(model, clients, rounds=4, watch=(0, 1, 2))
    found = source.by_vote(list(rounds.values()), clients[0].inputs, clients[0].targets)
    votes = torch.zeros(40, 3)
    for number in range(4):
        models = [LastReturned()([rounds[client][number]]) for client in range(3)]
        chosen = source.by_loss(models, clients[0].inputs, clients[0].targets).choice
        votes[torch.arange(40), chosen] += 1
    assert torch.equal(found.scores, votes)
    assert torch.equal(found.choice, votes.argmax(1))
    fewer = [rounds[0], rounds[1][:1], rounds[2][:2]]
    assert float(source.by_vote(fewer, clients[0].inputs, clients[0].targets).scores.sum()) == 40


def test_inputs_that_lie_apart_give_the_source_away():
    apart = [replace(one, inputs=one.inputs + 3.0 * number) for number, one in enumerate(table_clients())]
    rounds = list(watched(network(), apart, rounds=12, watch=(0, 1, 2)).values())
    right = [float((source.by_inputs(rounds, one.inputs).choice == i).double().mean()) for i, one in enumerate(apart)]
    assert sum(right) / len(right) > 0.9
    with pytest.raises(InvalidInput, match="does not tell"):
        source.by_inputs(
            list(watched(network(batch_norm=True), apart, rounds=3, watch=(0, 1)).values()), apart[0].inputs
        )
    with pytest.raises(InvalidInput, match="at least 2 clients"):
        source.by_inputs(rounds[:1], apart[0].inputs)


def test_what_cannot_be_compared_is_refused():
    clients = table_clients()
    rounds = watched(network(), clients, rounds=2, watch=(0, 1))
    with pytest.raises(InvalidInput, match="at least 2 clients"):
        source.by_loss([LastReturned()(rounds[0])], clients[0].inputs, clients[0].targets)
    with pytest.raises(InvalidInput, match="all clients took part"):
        source.by_vote([rounds[0][:1], rounds[1][1:]], clients[0].inputs, clients[0].targets)
