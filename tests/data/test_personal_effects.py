import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.data import by_group, load


def coefficients(client):
    """The least-squares coefficients of one client's records."""
    return torch.linalg.lstsq(client.inputs.double(), client.targets.double()[:, None]).solution[:, 0]


def test_each_client_has_a_linear_relation_of_its_own():
    clients = by_group(load("personal_effects", clients=3, samples=400, noise=0.01))
    fits = torch.stack([coefficients(client) for client in clients])
    assert float(torch.pdist(fits).min()) > 1
    for client, fit in zip(clients, fits, strict=True):
        assert float((client.inputs.double() @ fit - client.targets.double()).std()) < 0.02


def test_the_attribute_is_binary_and_its_effect_has_the_given_size():
    clients = by_group(load("personal_effects", clients=60, samples=100, features=2, effect=3.0, noise=0.1))
    effects = torch.stack([coefficients(client)[-1] for client in clients])
    assert 2 < float(effects.std()) < 4
    assert set(clients[0].inputs[:, -1].tolist()) == {0.0, 1.0}


def test_the_seed_decides_everything():
    first, again, other = (load("personal_effects", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)


def test_negative_noise_is_refused():
    with pytest.raises(InvalidInput, match="noise"):
        load("personal_effects", noise=-1.0)
