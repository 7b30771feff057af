"""Directions along which samples spread, also of samples that are many and large."""

import pytest
import torch

from leakgauge.attacks.malicious import trap_rows


def samples(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(200, 12, generator=draw, dtype=torch.double) @ torch.randn(12, 50, generator=draw).double()


@pytest.mark.parametrize("large", [20_000_000, 0])
def test_samples_spread_equally_and_without_correlation(large, monkeypatch):
    monkeypatch.setattr(trap_rows, "LARGE", large)
    looks = trap_rows.spread_directions(samples(), 3, torch.Generator().manual_seed(1))
    seen = (samples() - samples().mean(0)) @ looks.T
    assert torch.allclose(torch.cov(seen.T), torch.eye(3, dtype=torch.double), atol=1e-6)


def test_the_randomised_method_finds_the_largest_components(monkeypatch):
    centred = samples() - samples().mean(0)
    _, sizes, components = torch.linalg.svd(centred, full_matrices=False)
    monkeypatch.setattr(trap_rows, "LARGE", 0)
    found, directions = trap_rows._components(centred, 4, torch.Generator().manual_seed(0))
    assert torch.allclose(found, sizes[:4])
    assert torch.allclose((directions @ components[:4].T).abs(), torch.eye(4, dtype=torch.double), atol=1e-5)
