"""Dummy samples: the region they start in, and the updates they explain."""

from dataclasses import replace

import torch

from leakgauge.attacks.local_model.dummies import Region, Target, possible
from leakgauge.attacks.local_model.messages import Messages
from leakgauge.core.observation import DataSpec
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched


def test_the_clients_own_samples_explain_its_updates():
    (client, *others), model = table_clients(), network()
    rounds = watched(model, [client, *others], rounds=6)[0]
    target = Target(Messages.read(rounds))
    labels = torch.nn.functional.one_hot(client.targets, 2).float()
    errors = target.errors(torch.arange(6), (client.inputs, labels))
    assert float(errors.max()) < 1e-8
    unknown = Target(Messages.read([one.knowing(lr=None) for one in rounds]))
    assert not unknown.scaled
    assert float(unknown.errors(torch.arange(6), (client.inputs, labels)).max()) < 1e-4


def test_dummy_samples_are_possible_samples():
    data = DataSpec((4,), 2, mean=(1.0, 0.5, 0.0, 0.0), std=(2.0, 1.0, 1.0, 1.0), bounded=False,
                    columns=("age", "job=a", "job=b", "member=yes"))  # fmt: skip
    rows = data.denormalise(possible(torch.randn(5, 4), data))
    torch.testing.assert_close(rows[:, 1] + rows[:, 2], torch.ones(5))
    assert bool(((rows[:, 1:] >= 0) & (rows[:, 1:] <= 1)).all())
    pictures = DataSpec((1, 2, 2), 2, mean=(0.3,), std=(0.2,))
    pixels = pictures.denormalise(possible(5 * torch.randn(3, 1, 2, 2), pictures))
    assert bool(((pixels >= 0) & (pixels <= 1)).all())


def test_the_first_layer_shows_the_mean_of_the_inputs():
    shift = torch.tensor([2.0, 4.0, 6.0, 0.0, 0.0, 0.0])
    clients = [replace(one, inputs=one.inputs + shift) for one in table_clients()]
    target = Target(Messages.read(watched(network(), clients, rounds=12)[0]))
    mean = clients[0].inputs.mean(0)[:3]
    assert float((target.region.centre[:3] - mean).norm()) < 0.35 * float(mean.norm())
    hidden_by_norm = watched(network(batch_norm=True), clients, rounds=12)[0]
    assert not bool(Target(Messages.read(hidden_by_norm)).region.centre.any())


def test_dummy_shares_start_at_the_shares_of_the_first_layer():
    data = DataSpec((3,), 2, bounded=False, columns=("age", "job=a", "job=b"))
    inputs = torch.tensor([40.0, 0.9, 0.1])
    bias = torch.randn(5, 16)
    region = Region.read({"0.weight": bias.unsqueeze(-1) * inputs, "0.bias": bias}, data)
    torch.testing.assert_close(possible(region.centre.unsqueeze(0), data)[0], inputs)


def test_local_steps_that_swing_are_simulated():
    """Steps across a valley nearly cancel, so the update is the gradient of no single point."""
    clients = linear_clients(4)
    steep = [replace(one, inputs=3 * one.inputs) for one in clients]
    rounds = watched(linear(4), steep, rounds=6, epochs=4, lr=0.08)[0]
    own = (steep[0].inputs, steep[0].targets)
    simulated, half_way = (Target(Messages.read(rounds), local).errors(torch.arange(6), own).max() for local in (4, 1))
    assert float(simulated) < 1e-12
    assert float(half_way) > 0.01
