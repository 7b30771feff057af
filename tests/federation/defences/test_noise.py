"""The noise has the documented distribution."""

import math

import pytest
import torch

from leakgauge.federation.defences import GaussianNoise, LaplacianNoise

ZEROS = {"a": torch.zeros(4, 100_000)}


def noise(defence, zeros=ZEROS):
    return defence.on_gradients(zeros, torch.Generator().manual_seed(0))["a"]


@pytest.mark.parametrize("sigma", [0.01, 0.03])
def test_gaussian_noise_is_gaussian(sigma):
    drawn = noise(GaussianNoise(sigma)) / sigma
    assert drawn.mean().item() == pytest.approx(0, abs=0.01)
    assert drawn.std().item() == pytest.approx(1, rel=0.01)
    assert drawn.pow(4).mean().item() == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("scale", [0.01, 0.02])
def test_laplacian_noise_is_laplacian(scale):
    drawn = noise(LaplacianNoise(scale)) / scale
    assert drawn.mean().item() == pytest.approx(0, abs=0.01)
    assert drawn.std().item() == pytest.approx(math.sqrt(2), rel=0.01)
    assert drawn.abs().mean().item() == pytest.approx(1, rel=0.01)
    assert (drawn.abs() > 3).double().mean().item() == pytest.approx(math.exp(-3), rel=0.05)


@pytest.mark.parametrize("defence", [GaussianNoise(1.0), LaplacianNoise(1.0)], ids=repr)
def test_noise_has_the_precision_of_the_gradient(defence):
    assert noise(defence, {"a": torch.zeros(2, 50, dtype=torch.double)}).dtype == torch.double
    coarse = noise(defence, {"a": torch.zeros(2, 50, dtype=torch.bfloat16)})
    assert torch.equal(coarse, noise(defence, {"a": torch.zeros(2, 50)}).bfloat16())


def test_laplacian_noise_is_finite_at_the_ends_of_the_interval(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.tensor([0.0, 0.5, 1.0 - 2**-24]).expand(shape))
    drawn = noise(LaplacianNoise(1.0), {"a": torch.zeros(2, 3)})[0]
    assert drawn[1] == 0
    assert bool(torch.isfinite(drawn).all())
    assert (drawn[0] < -15, drawn[2] > 15) == (True, True)
