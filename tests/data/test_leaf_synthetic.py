from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.data import by_group, load


def test_defaults_are_the_lmra_paper_s() -> None:
    dataset = load("leaf_synthetic")
    assert dataset.inputs.shape == (20_000, 100)
    assert dataset.spec.classes == 5
    assert [len(client) for client in by_group(dataset)] == [2000] * 10
    assert dataset.sensitive is None


def test_inputs_follow_the_recipe() -> None:
    [client] = by_group(load("leaf_synthetic", clients=1, features=20, samples=20_000))
    covariance = torch.cov(client.inputs.T)
    expected = torch.diag(torch.arange(1, 21) ** -1.2)
    assert torch.allclose(covariance, expected, atol=0.03)


def test_clients_differ_and_hold_several_classes() -> None:
    clients = by_group(load("leaf_synthetic"))
    means = torch.stack([client.inputs.mean(0) for client in clients])
    assert torch.pdist(means).min() > 5
    for client in clients:
        assert client.targets.bincount(minlength=5).max() < 0.9 * len(client)


def test_labels_come_from_a_linear_model_of_the_client() -> None:
    from sklearn.linear_model import LogisticRegression

    client = by_group(load("leaf_synthetic", classes=2, features=10, samples=1000))[0]
    inputs, targets = client.inputs.numpy(), client.targets.numpy()
    accuracy = LogisticRegression(C=100, max_iter=1000).fit(inputs, targets).score(inputs, targets)
    assert accuracy > 0.95


def test_lognormal_sizes() -> None:
    dataset = load("leaf_synthetic", clients=200, features=3, samples=None, seed=1)
    assert dataset.groups is not None
    sizes = dataset.groups.bincount().numpy()
    assert sizes.min() >= 5
    assert sizes.max() == 1000
    assert 12 < np.median(sizes) < 45  # 5 + exp(3) = 25


def test_binary_attribute() -> None:
    dataset = load("leaf_synthetic", binary_attribute=True, samples=500)
    column = dataset.inputs[:, dataset.spec.columns.index("feature_0")]
    assert dataset.sensitive == "feature_0"
    assert column.unique().tolist() == [0, 1]
    assert 0.4 < float(column.mean()) < 0.6


def test_seed() -> None:
    state = torch.get_rng_state()
    small: dict[str, Any] = {"clients": 2, "features": 3, "samples": 4}
    assert torch.equal(load("leaf_synthetic", **small).inputs, load("leaf_synthetic", **small).inputs)
    assert not torch.equal(load("leaf_synthetic", **small).inputs, load("leaf_synthetic", **small, seed=1).inputs)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "option", [{"clients": 0}, {"classes": 1}, {"samples": 0}, {"features": 0}, {"clusters": 0}, {"seed": -1}]
)
def test_bad_options(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(option))):
        load("leaf_synthetic", **option)
