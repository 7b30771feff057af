"""Algorithm 2: update maps that are learned, by a network or by made-up samples."""

from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import local_model as inference
from leakgauge.attacks.local_model import Distilled, GlobalModel, LastReturned, Learned
from leakgauge.attacks.local_model.dummies import Region, Target, possible
from leakgauge.attacks.local_model.learned import Coordinates
from leakgauge.attacks.local_model.messages import Messages
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import DataSpec
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum, train_alone
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched

QUICK = {"samples": 16, "steps": 60, "training": 40}


def test_coordinates_lead_there_and_back():
    vectors = torch.randn(6, 40, dtype=torch.double)
    coordinates = Coordinates.of(vectors)
    assert coordinates.basis.shape == (5, 40)
    torch.testing.assert_close(coordinates.outside(coordinates.inside(vectors)), vectors)


def test_a_learned_map_comes_nearer_to_a_linear_clients_optimum_than_the_proxies():
    clients = linear_clients(4)
    rounds = watched(linear(4), clients, rounds=80, epochs=3, clients_per_round=3)[0]
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    far = {
        type(one).__name__: float((flatten(one(rounds).weights) - optimum).norm())
        for one in (Learned(widths=(64,), decays=(1e-3,), epochs=300, lr=1e-2), GlobalModel(), LastReturned())
    }
    assert far["Learned"] < min(far["GlobalModel"], far["LastReturned"])


def test_a_learned_map_says_what_it_needs():
    rounds = watched(linear(3), linear_clients(3), rounds=5)[0]
    with pytest.raises(InvalidInput, match="give at least 10, or use Secant"):
        Learned()(rounds)
    with pytest.raises(InvalidInput, match="at least one value"):
        Learned(widths=())
    with pytest.raises(InvalidInput, match="hold"):
        Learned(hold=1)


def test_nothing_grows_with_the_square_of_the_model():
    """A map of 20,000 parameters in a few megabytes; the square would be gigabytes."""
    import resource

    from leakgauge import models

    model = models.build("mlp", shape=[6], classes=2, hidden=[128, 128], seed=0)
    rounds = watched(model, table_clients(), rounds=12)[0]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Learned(epochs=20, steps=5)(rounds)
    Distilled(samples=8, steps=4, training=4)(rounds)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_made_up_samples_that_are_the_clients_own_explain_its_updates():
    (client, *others), model = table_clients(), network()
    rounds = watched(model, [client, *others], rounds=6)[0]
    target = Target(Messages.read(rounds))
    labels = torch.nn.functional.one_hot(client.targets, 2).float()
    errors = target.errors(torch.arange(6), (client.inputs, labels))
    assert float(errors.max()) < 1e-8
    unknown = Target(Messages.read([one.knowing(lr=None) for one in rounds]))
    assert not unknown.scaled
    assert float(unknown.errors(torch.arange(6), (client.inputs, labels)).max()) < 1e-4


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}], ids=["plain", "batch norm"])
def test_made_up_samples_lead_nearer_to_the_clients_own_model(options):
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
    assert "the last one known" in found.outcome
    assert torch.equal(flatten(found.weights), flatten(LastReturned()(rounds).weights))


def test_the_same_seed_gives_the_same_model():
    rounds = watched(network(), table_clients(), rounds=12)[0]
    tiny = Distilled(samples=6, steps=5, training=5)
    first, second, other = (tiny(rounds, seed=seed).weights for seed in (0, 0, 1))
    assert torch.equal(flatten(first), flatten(second))
    assert not torch.equal(flatten(first), flatten(other))


def test_made_up_samples_are_ones_that_the_data_could_hold():
    data = DataSpec((4,), 2, mean=(1.0, 0.5, 0.0, 0.0), std=(2.0, 1.0, 1.0, 1.0), bounded=False,
                    columns=("age", "job=a", "job=b", "member=yes"))  # fmt: skip
    rows = data.denormalise(possible(torch.randn(5, 4), data))
    torch.testing.assert_close(rows[:, 1] + rows[:, 2], torch.ones(5))
    assert bool(((rows[:, 1:] >= 0) & (rows[:, 1:] <= 1)).all())
    pictures = DataSpec((1, 2, 2), 2, mean=(0.3,), std=(0.2,))
    pixels = pictures.denormalise(possible(5 * torch.randn(3, 1, 2, 2), pictures))
    assert bool(((pixels >= 0) & (pixels <= 1)).all())


def test_the_first_layer_tells_where_the_inputs_lie():
    shift = torch.tensor([2.0, 4.0, 6.0, 0.0, 0.0, 0.0])
    clients = [replace(one, inputs=one.inputs + shift) for one in table_clients()]
    target = Target(Messages.read(watched(network(), clients, rounds=12)[0]))
    mean = clients[0].inputs.mean(0)[:3]
    assert float((target.region.centre[:3] - mean).norm()) < 0.35 * float(mean.norm())
    hidden_by_norm = watched(network(batch_norm=True), clients, rounds=12)[0]
    assert not bool(Target(Messages.read(hidden_by_norm)).region.centre.any())


def test_made_up_shares_begin_where_the_first_layer_shows_them():
    data = DataSpec((3,), 2, bounded=False, columns=("age", "job=a", "job=b"))
    inputs = torch.tensor([40.0, 0.9, 0.1])
    bias = torch.randn(5, 16)
    region = Region.read({"0.weight": bias.unsqueeze(-1) * inputs, "0.bias": bias}, data)
    torch.testing.assert_close(possible(region.centre.unsqueeze(0), data)[0], inputs)


def test_local_steps_that_swing_are_simulated():
    """Steps across a valley nearly cancel: no gradient at a single point tells what comes back."""
    clients = linear_clients(4)
    steep = [replace(one, inputs=3 * one.inputs) for one in clients]
    rounds = watched(linear(4), steep, rounds=6, epochs=4, lr=0.08)[0]
    own = (steep[0].inputs, steep[0].targets)
    simulated, half_way = (Target(Messages.read(rounds), local).errors(torch.arange(6), own).max() for local in (4, 1))
    assert float(simulated) < 1e-12
    assert float(half_way) > 0.01


def test_regressions_are_distilled_too():
    clients = linear_clients(4)
    rounds = watched(linear(4), clients, rounds=30, epochs=2)[0]
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    found = Distilled(samples=24, steps=150, training=100, training_lr=0.05)(rounds)
    assert (flatten(found.weights) - optimum).norm() < (flatten(LastReturned()(rounds).weights) - optimum).norm()


def test_methods_by_name():
    assert inference.build("learned", widths=[8], epochs=5) == Learned(widths=(8,), epochs=5)
    with pytest.raises(UnknownName, match="did you mean 'secant'"):
        inference.build("secnt")
    with pytest.raises(UnknownName, match="option of secant"):
        inference.build("secant", ridge=1)
