import pytest
import torch

from leakgauge import data, models
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import Mixup
from leakgauge.federation.rounds import run_federation


def mixed(inputs, targets, classes=None, alpha=1.0, seed=0):
    return Mixup(alpha).on_batch((inputs, targets), classes, torch.Generator().manual_seed(seed))


def test_inputs_and_labels_are_mixed_alike():
    """One-hot inputs show which samples were mixed. The labels must be the same mixture."""
    inputs, targets = torch.eye(4), torch.arange(4)
    changed = 0
    for seed in range(5):
        found, labels = mixed(inputs, targets, classes=4, seed=seed)
        assert torch.allclose(found, labels)
        assert torch.allclose(labels.sum(1), torch.ones(4))
        changed += not torch.equal(found, inputs)
    assert changed >= 4  # a random order may be the order itself


def test_regression_targets_are_mixed():
    found, targets = mixed(torch.arange(4.0)[:, None], torch.arange(4.0))
    assert torch.allclose(found[:, 0], targets)


def test_the_weight_is_beta_distributed():
    """Beta(a, a) has the mean one half and the variance 1 / (4 (2a + 1))."""
    inputs = torch.tensor([[0.0], [1.0]])
    found = torch.stack([mixed(inputs, torch.zeros(2), alpha=2.0, seed=seed)[0][0, 0] for seed in range(4000)])
    weights = found[found > 0]  # where the partner is the other one
    assert len(weights) == pytest.approx(2000, rel=0.1)
    assert weights.mean().item() == pytest.approx(0.5, abs=0.02)
    assert weights.var().item() == pytest.approx(1 / 20, rel=0.1)


@pytest.mark.parametrize("samples", [1, 6])
def test_a_client_trains_on_mixtures(samples):
    own, model = data.load("digits").share(range(samples)), models.mlp(shape=(1, 8, 8), classes=10, hidden=[8], seed=0)
    plain, _ = fedsgd(model, own)
    mixed, _ = fedsgd(model, own, defences=Mixup(), granted=["labels"])
    assert torch.allclose(flatten(plain.difference()), flatten(mixed.difference()), atol=1e-6) == (samples == 1)
    assert torch.equal(mixed.labels, own.targets)
    assert fedavg(model, own, lr=0.1, epochs=2, batch_size=3, defences=Mixup())[0].returned


def test_a_fixed_share_is_the_same_at_every_step():
    """LMRA takes the average of two samples."""
    inputs = torch.tensor([[0.0], [1.0]])
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        found, _ = Mixup(share=0.5).on_batch((inputs, torch.zeros(2)), None, draw)
        assert found[:, 0].tolist() in ([0.0, 1.0], [0.5, 0.5])


def test_clients_mix_together_as_they_do_alone():
    clients = [data.load("digits").share(range(start, start + 6)) for start in (0, 6)]
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=[8], seed=0)
    runs = [
        run_federation(model, clients, rounds=2, lr=0.1, batch_size=3, defences=Mixup(), together=together)
        for together in (True, False)
    ]
    assert torch.allclose(flatten(runs[0].weights), flatten(runs[1].weights), atol=1e-5)
