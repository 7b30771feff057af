"""DP-SGD by Opacus: its accountant, its clipping and noise, and its refusals."""

import math
import sys

import pytest
import torch
from torch import nn

from leakgauge import models
from leakgauge.core.errors import InvalidInput, MissingExtra
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import DPSGD, GaussianNoise, Mixup
from leakgauge.federation.defences.dpsgd import only_linear, without_batch_norm
from leakgauge.federation.rounds import run_federation
from tests.shared import LazyModule, digits

accountants = LazyModule("opacus.accountants")

RECIPE = LocalTraining(lr=0.1, epochs=3, batch_size=5, samples=50)


def network():
    return models.mlp(shape=(1, 8, 8), classes=10, hidden=[8], seed=0)


@pytest.mark.parametrize(("name", "accountant"), [("rdp", "RDPAccountant"), ("prv", "PRVAccountant")])
@pytest.mark.parametrize("rounds", [1, 4])
def test_epsilon_is_what_opacus_accounts_step_by_step(name, accountant, rounds):
    """The same steps, sampling rate and noise, one by one."""
    reference = getattr(accountants, accountant)()
    for _ in range(30 * rounds):
        reference.step(noise_multiplier=1.3, sample_rate=0.1)
    expected = reference.get_epsilon(delta=1e-5)
    assert DPSGD(noise=1.3, accountant=name).spent(RECIPE, rounds) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_target_is_kept_and_nearly_used_up(epsilon):
    defence = DPSGD(epsilon=epsilon)
    spent = defence.spent(RECIPE, 4)
    assert 0.97 * epsilon < spent <= epsilon * 1.001
    assert defence.spent(RECIPE, 2, planned=4) < spent
    assert defence.noise_for(RECIPE, 4) > defence.noise_for(RECIPE, 1)


def test_the_gradient_is_that_of_clipped_samples_plus_noise():
    """With almost no noise, it is the mean of the samples' clipped gradients."""
    own, model = digits().share(range(6)), network()
    observation, _ = fedsgd(model, own, defences=DPSGD(noise=1e-9, clip=0.5))
    singles = [flatten(fedsgd(model, own.share([row]))[0].difference()) for row in range(6)]
    expected = torch.stack([one * min(1.0, 0.5 / float(one.norm())) for one in singles]).mean(0)
    assert torch.allclose(flatten(observation.difference()), expected, atol=1e-6)


@pytest.mark.parametrize("mixed", [False, True])
def test_linear_layers_are_trained_alike_with_and_without_the_samples_gradients(monkeypatch, mixed):
    """Ghost clipping gives the same weights, even where a batch is empty."""
    defences = (Mixup(0.5), DPSGD(noise=1.0, clip=0.3)) if mixed else DPSGD(noise=1.0, clip=0.3)

    def trained():
        observation, _ = fedavg(
            network(), digits().share(range(12)), lr=0.1, epochs=4, batch_size=2, defences=defences, seed=2
        )
        return flatten(observation.difference())

    assert only_linear(network())
    ghost = trained()
    monkeypatch.setattr("leakgauge.federation.defences.dpsgd.only_linear", lambda model: False)
    assert torch.allclose(ghost, trained(), atol=1e-6)


def test_what_ghost_clipping_is_for():
    tied = nn.Linear(8, 8)
    assert not only_linear(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)))
    assert not only_linear(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
    again = nn.Linear(8, 8)
    again.weight = tied.weight
    assert not only_linear(nn.Sequential(tied, again))


def test_noise_has_the_size_that_it_should():
    own, model = digits().share(range(6)), network()
    clean, noisy = (
        flatten(fedsgd(model, own, defences=DPSGD(noise=noise, clip=0.5), seed=3)[0].difference())
        for noise in (1e-9, 2.0)
    )
    assert float((noisy - clean).std()) == pytest.approx(2.0 * 0.5 / 6, rel=0.1)


def test_local_training_is_poisson_sampled_and_repeatable():
    own = digits().share(range(50))
    defence = DPSGD(noise=0.5)
    first, truth = fedavg(network(), own, lr=0.1, epochs=3, batch_size=5, defences=defence, seed=1)
    again, _ = fedavg(network(), own, lr=0.1, epochs=3, batch_size=5, defences=defence, seed=1)
    other, _ = fedavg(network(), own, lr=0.1, epochs=3, batch_size=5, defences=defence, seed=2)
    assert torch.equal(flatten(first.returned), flatten(again.returned))
    assert not torch.equal(flatten(first.returned), flatten(other.returned))
    sizes = [len(rows) for rows in truth.order]
    assert len(sizes) == 30
    assert len(set(sizes)) > 1  # no fixed size
    assert sum(sizes) / 30 == pytest.approx(5, abs=1.5)


def test_a_federation_learns_and_reports_what_each_client_spent():
    clients = [digits().share(range(start, start + 100)) for start in (0, 100)]
    found = run_federation(
        network(), clients, rounds=3, lr=0.5, batch_size=20, defences=DPSGD(noise=1.0, clip=1.0), clients_per_round=1,
        test=digits().share(range(1000, 1200)), test_every=3,
    )  # fmt: skip
    recipe = LocalTraining(lr=0.5, epochs=1, batch_size=20, samples=100)
    assert set(found.spent) <= {0, 1}
    for epsilon in found.spent.values():
        assert any(epsilon == pytest.approx(DPSGD(noise=1.0).spent(recipe, often)) for often in (1, 2, 3))
    assert found.history[-1][1] > 0.1


def test_batch_norm_is_refused_with_the_fixer():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    own = digits().share(range(6))
    for call in (
        lambda m: fedsgd(m, own, defences=DPSGD(noise=1.0)),
        lambda m: fedavg(m, own, lr=0.1, defences=DPSGD(noise=1.0)),
    ):
        with pytest.raises(InvalidInput, match="without_batch_norm"):
            call(model)
    fixed = without_batch_norm(model)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert fedsgd(fixed, own, defences=DPSGD(noise=1.0))[0].gradient


def test_it_does_not_go_with_what_acts_on_its_steps():
    own = digits().share(range(6))
    with pytest.raises(InvalidInput, match="on='update'"):
        fedsgd(network(), own, defences=(DPSGD(noise=1.0), GaussianNoise(0.1)))
    with pytest.raises(InvalidInput, match="Choose one"):
        fedsgd(network(), own, defences=(DPSGD(noise=1.0), DPSGD(noise=2.0)))
    with pytest.raises(InvalidInput, match="no fixed size"):
        fedavg(network(), own, lr=0.1, defences=DPSGD(noise=1.0), granted=["label_batches"])
    assert fedsgd(network(), own, defences=(DPSGD(noise=1.0), GaussianNoise(0.1, on="update")))


def test_without_opacus_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[dpsgd\]"):
        fedsgd(network(), digits().share(range(3)), defences=DPSGD(noise=1.0))
    assert math.isfinite(DPSGD(noise=1.0).clip)


def test_mixup_and_dpsgd_in_one_gradient():
    """LMRA, table 10, uses both. A batch is mixed before its samples are clipped, also at each local step."""
    own = digits().share(range(6))
    trained = [
        fedavg(network(), own, lr=0.1, epochs=2, batch_size=3, defences=chain)[0].returned
        for chain in ((DPSGD(noise=1e-9),), (Mixup(), DPSGD(noise=1e-9)))
    ]
    assert not torch.allclose(flatten(trained[0]), flatten(trained[1]), atol=1e-6)
    alone, both = (
        fedsgd(network(), own, defences=chain)[0] for chain in ((DPSGD(noise=1e-9),), (Mixup(), DPSGD(noise=1e-9)))
    )
    assert not torch.allclose(flatten(alone.difference()), flatten(both.difference()), atol=1e-6)


def test_a_budget_that_the_accountant_cannot_reach_is_refused_in_words():
    with pytest.raises(InvalidInput, match=r"finds no noise for epsilon 0\.01"):
        DPSGD(epsilon=0.01).noise_for(LocalTraining(lr=0.1, epochs=1, batch_size=4, samples=4))
