"""Mixtures of samples: what the client trains on, alone and together with others."""

import copy

import pytest
import torch
from torch.nn import functional as F

from leakscope import fedavg, run_federation
from leakscope.defences import BatchDefence, GaussianNoise, Mixup, build
from leakscope.errors import InvalidInput
from leakscope.params import flatten, parameters_of
from leakscope.seeding import generator
from tests.inference.cases import linear, linear_clients, network, table_clients


def test_mixtures_are_averages_of_pairs_of_samples_and_targets():
    inputs, targets = torch.randn(6, 4), torch.eye(3)[torch.tensor([0, 1, 2, 0, 1, 2])]
    order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    mixed, shares = Mixup(0.75).on_batch(inputs, targets, torch.Generator().manual_seed(3))
    torch.testing.assert_close(mixed, 0.75 * inputs + 0.25 * inputs[order])
    torch.testing.assert_close(shares, 0.75 * targets + 0.25 * targets[order])


def test_a_client_that_mixes_is_a_plain_loop():
    (client, *_), model = table_clients(), network()
    observation, truth = fedavg(model, client, lr=0.2, batch_size=15, epochs=2, seed=5, defences=Mixup())
    plain, draw = copy.deepcopy(model), generator(5, "defence", 0, "batch")
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.2)
    for rows in truth.order:
        inputs, targets = client.inputs[rows], F.one_hot(client.targets[rows], 2).float()
        other = torch.randperm(len(rows), generator=draw)
        loss = F.cross_entropy(plain((inputs + inputs[other]) / 2), (targets + targets[other]) / 2)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(observation.returned, parameters_of(plain))


@pytest.mark.parametrize("defences", [(Mixup(),), (Mixup(), GaussianNoise(0.1))], ids=["alone", "with noise"])
def test_clients_that_mix_train_together_as_one_by_one(defences):
    clients, model = table_clients(), network()
    together, apart = (
        run_federation(model, clients, rounds=2, lr=0.2, batch_size=15, defences=defences, together=choice).weights
        for choice in (True, False)
    )
    torch.testing.assert_close(together, apart)


def test_nothing_is_mixed_at_a_share_of_one_and_batch_norm_is_fine():
    (client, *_), model = table_clients(), network(batch_norm=True)
    plain, _ = fedavg(model, client, lr=0.1)
    same, _ = fedavg(model, client, lr=0.1, defences=Mixup(share=1))
    torch.testing.assert_close(plain.returned, same.returned)
    (numbers, *_) = linear_clients(3)
    mixed, _ = fedavg(linear(3), numbers, lr=0.1, defences=Mixup())
    assert not torch.equal(flatten(mixed.returned), flatten(fedavg(linear(3), numbers, lr=0.1)[0].returned))


@pytest.mark.parametrize("wrong", [0.4, 1.1, float("nan"), "half", None, True])
def test_shares_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidInput, match=r"must lie in 0\.5 to 1"):
        build("mixup", share=wrong)


def test_a_defence_must_keep_the_size_of_a_batch():
    class Half(BatchDefence):
        def on_batch(self, inputs, targets, draw):
            return inputs[::2], targets[::2]

    (client, *_) = table_clients()
    with pytest.raises(InvalidInput, match="as many samples"):
        fedavg(network(), client, lr=0.1, defences=Half())
