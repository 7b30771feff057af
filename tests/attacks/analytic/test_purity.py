"""Samples pass the checks of purity, and mixtures of two samples do not."""

import torch

from leakgauge.attacks.analytic.purity import Purity


def batch(width=200, samples=4):
    """Return augmented inputs, active neurons, gradients at a ReLU layer with one output, and the layer's gradient."""
    draws = torch.Generator().manual_seed(0)
    points = torch.randn(samples, 21, dtype=torch.double, generator=draws)
    points[:, -1] = 1
    weight = torch.randn(width, 21, dtype=torch.double, generator=draws)
    downstream = torch.randn(width, dtype=torch.double, generator=draws)
    shares = 0.5 + torch.rand(samples, 1, dtype=torch.double, generator=draws)

    def gradients(inputs, scale):
        return (inputs @ weight.T > 0) * downstream * scale

    rows = gradients(points, shares).T @ points / samples
    mixture = (shares[:2] * points[:2]).sum(0, keepdim=True) / shares[:2].sum()
    return points, mixture, weight, gradients, shares, rows


def test_the_gradient_of_a_mixture_is_no_gradient_of_a_sample():
    points, mixture, _, gradients, shares, rows = batch()
    purity = Purity(rows, 1e-12, 4)
    assert purity.separates
    assert purity.most_copies == 1
    assert float(purity.errors(gradients(points, shares), points, torch.ones(4)).max()) < 1e-9
    assert float(purity.errors(gradients(mixture, shares[:2].sum()), mixture, torch.ones(1))) > 0.1


def test_silent_neurons_distinguish_a_sample_from_a_mixture_without_labels():
    points, mixture, weight, _, _, rows = batch()
    both = torch.cat([points, mixture])
    assert Purity(rows, 1e-12, 4).alone(both, both @ weight.T <= 0).tolist() == [True] * 4 + [False]


def test_few_silent_neurons_prove_nothing():
    points, _, weight, _, _, rows = batch()
    silent = points @ weight.T <= 0
    silent[:, 12:] = False
    assert not bool(Purity(rows, 1e-12, 4).alone(points, silent).any())


def test_a_gradient_of_full_rank_separates_nothing():
    points, _, weight, _, _, rows = batch(samples=21)
    purity = Purity(rows, 1e-12, 21)
    assert not purity.separates
    assert not bool(purity.alone(points, points @ weight.T <= 0).any())
