"""The client that holds a record: by losses, by a vote over rounds, by mean inputs and by equations."""

from dataclasses import replace

import pytest
import torch

from leakgauge import fedsgd, models
from leakgauge.attacks import record_shares, source
from leakgauge.attacks.local_model import LastReturned, LocalModel
from leakgauge.attacks.registry import ATTACKS, build, specs
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.local_only import train_alone
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched


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
    with pytest.raises(InvalidInput, match="does not show the mean"):
        source.by_inputs(
            list(watched(network(batch_norm=True), apart, rounds=3, watch=(0, 1)).values()), apart[0].inputs
        )
    with pytest.raises(InvalidInput, match="at least 2 clients"):
        source.by_inputs(rounds[:1], apart[0].inputs)


def alike(clients=3, rows=40):
    """Clients of one distribution, one true model: only who holds a record tells them apart."""
    [everyone] = table_clients(clients=1, rows=clients * rows)
    return [everyone.share(range(rows * place, rows * (place + 1)), f"client {place}") for place in range(clients)]


def pooled(clients):
    owners = torch.cat([torch.full((len(one),), place) for place, one in enumerate(clients)])
    return torch.cat([one.inputs for one in clients]), torch.cat([one.targets for one in clients]), owners


def share_right(found, owners):
    return float((found.choice == owners).double().mean())


@pytest.mark.parametrize("known", [True, False])
def test_gradients_give_away_who_holds_a_record_among_clients_that_do_not_differ(known):
    clients = alike()
    rounds = list(watched(network(), clients, rounds=4, watch=(0, 1, 2)).values())
    if not known:
        rounds = [[one.knowing(lr=None, epochs=None, batch_size=None, samples=None) for one in own] for own in rounds]
    inputs, targets, owners = pooled(clients)
    found = source.by_equations(rounds, inputs, targets)
    assert share_right(found, owners) > 0.8  # a third by chance
    assert share_right(source.by_vote(rounds, inputs, targets), owners) < 0.6
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    again = source.by_equations(rounds, inputs[order], targets[order])
    assert torch.equal(again.choice, found.choice[order])


def test_records_that_nobody_asks_about_are_noise_to_the_equations():
    clients = alike(rows=60)
    rounds = list(watched(network(), clients, rounds=4, watch=(0, 1, 2)).values())
    inputs, targets, owners = pooled([one.share(range(15), one.name) for one in clients])
    assert 0.5 < share_right(source.by_equations(rounds, inputs, targets), owners) < 1


def test_the_equations_of_a_regression_and_of_updates_in_several_steps():
    clients = linear_clients(8, clients=3, rows=20)
    rounds = list(watched(linear(8), clients, rounds=3, watch=(0, 1, 2), batch_size=10, lr=0.01).values())
    inputs, targets, owners = pooled(clients)
    assert share_right(source.by_equations(rounds, inputs, targets), owners) > 0.5
    # one loss at a time, for a loss that is not known by name
    table = table_clients(clients=2)
    one_output = models.build("mlp", shape=[6], classes=1, hidden=[16], seed=0)
    seen = watched(one_output, table, rounds=2, watch=(0, 1), loss="binary_cross_entropy")
    inputs, targets, owners = pooled(table)
    assert share_right(source.by_equations(list(seen.values()), inputs, targets), owners) > 0.8


def test_gradients_need_not_be_held_all_at_once(monkeypatch):
    clients = alike(rows=9)
    rounds = list(watched(network(), clients, rounds=2, watch=(0, 1, 2)).values())
    inputs, targets, _ = pooled(clients)
    whole = source.by_equations(rounds, inputs, targets)
    monkeypatch.setattr(record_shares, "ROOM", 4 * 200)
    assert torch.allclose(source.by_equations(rounds, inputs, targets).scores, whole.scores, atol=1e-3)


def test_what_the_equations_cannot_be_made_of_is_refused():
    clients = alike(rows=10)
    inputs, targets, _ = pooled(clients)
    rounds = list(watched(network(), clients, rounds=2, watch=(0, 1, 2)).values())
    for options, words in (({"rounds": 0}, "rounds must"), ({"ridge": 0.0}, "ridge must")):
        with pytest.raises(InvalidInput, match=words):
            source.by_equations(rounds, inputs, targets, **options)
    with pytest.raises(InvalidInput, match="at least 2 clients"):
        source.by_equations(rounds[:1], inputs, targets)
    other = [replace(one, sent={name: value + 1 for name, value in one.sent.items()}) for one in rounds[1]]
    with pytest.raises(InvalidInput, match="not sent the same model"):
        source.by_equations([rounds[0], other], inputs, targets)
    normalising = watched(network(batch_norm=True), clients, rounds=1, watch=(0, 1))
    with pytest.raises(InvalidInput, match="normalises over its batches"):
        source.by_equations(list(normalising.values()), inputs, targets)


def test_what_cannot_be_compared_is_refused():
    clients = table_clients()
    rounds = watched(network(), clients, rounds=2, watch=(0, 1))
    with pytest.raises(InvalidInput, match="at least 2 clients"):
        source.by_loss([LastReturned()(rounds[0])], clients[0].inputs, clients[0].targets)
    with pytest.raises(InvalidInput, match="all clients took part"):
        source.by_vote([rounds[0][:1], rounds[1][1:]], clients[0].inputs, clients[0].targets)


def test_the_registered_attacks_are_the_functions():
    clients = alike(rows=10)
    inputs, targets, _ = pooled(clients)
    rounds = list(watched(network(), clients, rounds=3, watch=(0, 1, 2)).values())
    local = [LastReturned()(messages) for messages in rounds]
    expected = {
        "source_by_loss": source.by_loss(local, inputs, targets),
        "source_by_vote": source.by_vote(rounds, inputs, targets),
        "source_by_inputs": source.by_inputs(rounds, inputs),
        "source_by_equations": source.by_equations(rounds, inputs, targets),
    }
    assert list(expected) == [spec.name for spec in specs(recovers="source")]
    for name, result in expected.items():
        found = build(name)(rounds, inputs, targets, models=local)
        torch.testing.assert_close(found.scores, result.scores)
        assert ATTACKS[name].fits(rounds[0][0]).applies
    few = build("source_by_equations", rounds=1)(rounds, inputs, targets)
    torch.testing.assert_close(few.scores, source.by_equations(rounds, inputs, targets, rounds=1).scores)
    with pytest.raises(InvalidInput, match="needs a model of each client"):
        build("source_by_loss")(rounds, inputs, targets)


def test_the_rules_name_the_reason():
    clients = alike(rows=10)
    normalising = watched(network(batch_norm=True), clients, rounds=1)[0][0]
    assert "dense first layer with a bias" in ATTACKS["source_by_inputs"].fits(normalising).reason
    assert "normalises over its batches" in ATTACKS["source_by_equations"].fits(normalising).reason
    gradient = fedsgd(network(), clients[0])[0]
    assert "learning rate" in ATTACKS["source_by_vote"].fits(gradient).reason
    assert ATTACKS["source_by_vote"].fits(gradient.knowing(lr=0.1)).applies


def test_groups_of_records_of_one_client_are_found_more_often():
    clients, model = table_clients(rows=60), network()
    models = []
    for client in clients:
        alone = train_alone(model, client, lr=0.5, epochs=200)
        models.append(LocalModel(model, alone.weights, {}, client.spec, "cross_entropy", ""))
    inputs, targets = (torch.cat([getattr(one, name) for one in clients]) for name in ("inputs", "targets"))
    found = source.by_loss(models, inputs, targets)
    by_ten = found.of_groups(torch.arange(180) // 10)
    assert by_ten.scores.shape == (18, 3)
    torch.testing.assert_close(by_ten.scores[4], found.scores[40:50].sum(0))
    right = [
        float((choice == torch.arange(3).repeat_interleave(len(choice) // 3)).double().mean())
        for choice in (found.choice, by_ten.choice, found.of_groups(torch.arange(180) // 60).choice)
    ]
    assert right[0] < right[1] <= right[2]
    with pytest.raises(InvalidInput, match="2 group numbers for 180 records"):
        found.of_groups(torch.zeros(2, dtype=torch.long))
