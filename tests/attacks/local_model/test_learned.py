"""Algorithm 2 with a neural network as the update map."""

import pytest
import torch

from leakgauge.attacks.local_model import Distilled, GlobalModel, LastReturned, Learned
from leakgauge.attacks.local_model.learned import Coordinates
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum
from tests.attacks.local_model.cases import linear, linear_clients, table_clients, watched


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


def test_a_learned_map_refuses_few_rounds_and_bad_options():
    rounds = watched(linear(3), linear_clients(3), rounds=5)[0]
    with pytest.raises(InvalidInput, match="pass at least 10 rounds, or use Secant"):
        Learned()(rounds)
    with pytest.raises(InvalidInput, match="at least one candidate"):
        Learned(widths=())
    with pytest.raises(InvalidInput, match="hold"):
        Learned(hold=1)


def test_nothing_grows_with_the_square_of_the_model():
    """Fit a map of 20,000 parameters in a few megabytes. Its square would take gigabytes."""
    import resource

    from leakgauge import models

    model = models.build("mlp", shape=[6], classes=2, hidden=[128, 128], seed=0)
    rounds = watched(model, table_clients(), rounds=12)[0]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Learned(epochs=20, steps=5)(rounds)
    Distilled(samples=8, steps=4, training=4)(rounds)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
