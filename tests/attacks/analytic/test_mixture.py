"""Expectation-maximisation finds the gradients of samples whose neurons have one of two slopes."""

import pytest
import torch

from leakgauge.attacks.analytic.mixture import Branches, Mixture


def case(low, active, samples=6, width=120):
    """Return the equations, the true gradients in coordinates of their span, and which neurons have the high slope."""
    torch.manual_seed(0)
    downstream = torch.randn(width, 4, dtype=torch.double)
    shares = (torch.rand(samples, width) < active).double()
    slopes = low + (1 - low) * shares
    gradients = slopes * (torch.randn(samples, 4, dtype=torch.double) @ downstream.T)
    left = torch.linalg.qr(gradients.T)[0]
    ends = torch.ones(width, dtype=torch.double)
    return Mixture(left, downstream, Branches(low * ends, ends)), gradients @ left, shares


@pytest.mark.parametrize("low", [0.0, 0.01])
@pytest.mark.parametrize("active", [0.5, 0.9])
def test_gradients_are_found_from_rough_starts(low, active):
    mixture, truth, shares = case(low, active)
    rough = (shares + 0.4 * torch.randn_like(shares)).clamp(0.02, 0.98)
    pulls = (truth + 0.3 * truth.norm(dim=1, keepdim=True) * torch.randn_like(truth), torch.zeros_like(truth[:, :4]))
    fitted = mixture.fit(rough, pulls, 60)
    solved = fitted.residuals < 1e-12
    assert int(solved.sum()) >= 4
    cosines = (fitted.gradients[solved] @ (truth / truth.norm(dim=1, keepdim=True)).T).abs()
    assert torch.allclose(cosines.amax(1), torch.ones_like(cosines[:, 0]), atol=1e-9)
    rows = cosines.argmax(1)
    assert torch.allclose(fitted.shares[solved].round(), shares[rows])


def test_a_gradient_of_zero_is_no_solution():
    mixture, truth, shares = case(0.0, 0.5)
    nothing = (torch.zeros_like(truth), torch.zeros_like(truth[:, :4]))
    assert bool((mixture.fit(0 * shares, nothing, 3).residuals == 1).all())


def test_only_two_slopes_are_branches():
    points = torch.randn(200, 5, dtype=torch.double)
    relu = (points > 0).double()
    branches = Branches.of(2 * relu)
    assert branches.low.tolist() == [0.0] * 5
    assert branches.high.tolist() == [2.0] * 5
    assert torch.equal(branches.share(2 * relu), relu)
    assert Branches.of(torch.ones_like(points)) is None
    assert Branches.of(torch.sigmoid(points)) is None
    assert Branches.of(relu + (points > 1)) is None


def test_no_starts_have_no_solutions():
    """After proven samples are subtracted, rounding may leave no point to start from."""
    mixture, _, shares = case(0.0, 0.5)
    pulls = [shares.new_zeros(0, basis.shape[1]) for basis in (mixture.left, mixture.downstream)]
    fitted = mixture.fit(shares[:0], tuple(pulls), 5)
    assert all(len(part) == 0 for part in fitted)
