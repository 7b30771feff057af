from dataclasses import replace
from functools import partial

import pytest
import torch

from leakgauge import data, models
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.data import Dataset
from leakgauge.federation import defences
from leakgauge.federation.aggregation import aggregate
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.rehearsal import disjoint, public_data

DIGITS = data.load("digits")


def model():
    return models.lenet(shape=(1, 8, 8), seed=0)


def agree(one, other):
    return all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


@pytest.mark.parametrize(
    "chain", [(), (defences.build("gaussian_noise", sigma=0.1),), (defences.build("dpsgd", noise=1.0),)]
)
@pytest.mark.parametrize("send", [fedsgd, partial(fedavg, lr=0.1, epochs=2, batch_size=2)])
def test_a_rehearsed_client_sends_what_a_client_would_send(send, chain):
    own, other = DIGITS.share(range(4)), DIGITS.share(range(10, 14))
    observation, truth = send(model(), own, defences=chain, seed=1)
    granted = public_data(observation, DIGITS.share(range(10, 60)), defences=chain, truth=truth)
    real, _ = send(model(), other, defences=chain, seed=7)
    rehearsed = granted.public.rehearse(other.inputs, other.targets, 7)
    assert agree(rehearsed, real.difference())
    assert not agree(rehearsed, observation.difference())


def test_a_sum_of_clients_is_rehearsed_as_a_sum():
    secure = defences.build("secure_aggregation", clients=2)
    parts = [fedsgd(model(), DIGITS.share(range(3 * number, 3 * number + 3))) for number in range(2)]
    observation, truth = aggregate(parts)
    granted = public_data(observation, DIGITS.share(range(10, 60)), defences=[secure], truth=truth)
    others = [fedsgd(model(), DIGITS.share(range(start, start + 3))) for start in (20, 23)]
    rows = torch.arange(20, 26)
    rehearsed = granted.public.rehearse(DIGITS.inputs[rows], DIGITS.targets[rows], 0)
    assert agree(rehearsed, aggregate(others)[0].difference())


def test_samples_of_the_client_are_left_out_also_near_copies_of_pictures():
    own, public = DIGITS.share(range(3)), DIGITS.inputs[:10].clone()
    public[1] += 0.001
    assert disjoint(public, own.inputs, DIGITS.spec).tolist() == list(range(3, 10))
    table = DataSpec((64,), 10, bounded=False)
    rows = disjoint(public.flatten(1), own.inputs.flatten(1), table)
    assert rows.tolist() == [1, *range(3, 10)]


def test_nothing_but_the_clients_own_samples_is_refused():
    observation, truth = fedsgd(model(), DIGITS.share(range(3)))
    with pytest.raises(InvalidInput, match="every public sample is also a sample of the client"):
        public_data(observation, DIGITS.share([1, 2]), truth=truth)


def test_data_of_another_kind_is_refused():
    observation, _ = fedsgd(model(), DIGITS.share(range(3)))
    wide = Dataset(torch.rand(5, 1, 8, 9), torch.zeros(5, dtype=torch.long), DataSpec((1, 8, 9), 10))
    with pytest.raises(InvalidInput, match=r"samples of shape \(1, 8, 9\), but the clients' data has \(1, 8, 8\)"):
        public_data(observation, wide)
    few = Dataset(torch.rand(5, 1, 8, 8), torch.zeros(5, dtype=torch.long), DataSpec((1, 8, 8), 4))
    with pytest.raises(InvalidInput, match="classes 4, but the clients' data has 10"):
        public_data(observation, few)
    named = DataSpec((2,), 2, bounded=False, columns=("a", "b"))
    table = Dataset(torch.rand(5, 2), torch.zeros(5, dtype=torch.long), named)
    seen, _ = fedsgd(torch.nn.Linear(2, 2), table)
    with pytest.raises(InvalidInput, match="other columns"):
        public_data(seen, Dataset(table.inputs, table.targets, replace(named, columns=("b", "a"))))


def test_an_unknown_recipe_is_named():
    observation, _ = fedavg(model(), DIGITS.share(range(3)), lr=0.1, hidden=["lr", "epochs"])
    granted = public_data(observation, DIGITS.share(range(10, 60)))
    assert (
        granted.public.obstacle
        == "needs the client's learning rate and number of epochs, which the attacker does not know"
    )
    assert "It has public data of the same kind: 50 samples of digits" in " ".join(granted.threat_model())
