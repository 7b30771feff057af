"""The number that proves a sample, and the rank of a gradient."""

import pytest
import torch

from leakgauge.attacks.analytic.layer_span import LayerSpan, rank_of


def layer(samples=6, seed=0):
    torch.manual_seed(seed)
    gradients = torch.randn(samples, 40, dtype=torch.double)
    inputs = torch.cat([torch.randn(samples, 30, dtype=torch.double), torch.ones(samples, 1, dtype=torch.double)], 1)
    return gradients, inputs, gradients.T @ inputs / samples


def test_true_pairs_give_the_number_of_samples_and_others_do_not():
    gradients, inputs, gradient = layer()
    span = LayerSpan.of(gradient, 6)
    assert torch.allclose(span.coefficients(gradients, inputs), torch.full((6,), 6.0, dtype=torch.double))
    assert float((span.coefficients(gradients.roll(1, 0), inputs)).abs().max()) < 1e-9
    assert float(span.outside(gradients).max()) < 1e-9
    assert float(span.outside(torch.randn_like(gradients)).min()) > 0.5


def test_subtracted_samples_lower_the_rank():
    gradients, inputs, gradient = layer()
    weights = torch.full((2,), 1 / 6, dtype=torch.double)
    rest = LayerSpan.of(gradient, 6).without(gradients[:2], inputs[:2], weights).reduced(4)
    assert torch.allclose(rest.left @ rest.core @ rest.right.T, gradients[2:].T @ inputs[2:] / 6)
    assert torch.allclose(rest.coefficients(gradients[2:], inputs[2:]), torch.full((4,), 6.0, dtype=torch.double))


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3])
def test_the_rank_counts_samples_above_noise(noise):
    _, _, gradient = layer()
    assert rank_of(gradient + noise * torch.randn_like(gradient), 1e-7) == 6
    assert rank_of(gradient.float().double(), 6e-8) == 6
    assert rank_of(0 * gradient, 1e-7) == 0
