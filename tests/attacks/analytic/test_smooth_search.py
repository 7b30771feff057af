"""The normal equations for smooth activations agree with automatic differentiation."""

import pytest
import torch

from leakgauge.attacks.analytic.levenberg import search
from leakgauge.attacks.analytic.smooth_search import CurveProblem


def curvature(values):
    slope = 1 - torch.tanh(values).square()
    return slope, -2 * torch.tanh(values) * slope


def problem(biased):
    torch.manual_seed(0)
    layer, last = torch.randn(30, 5, dtype=torch.double) / 2, torch.randn(5, dtype=torch.double)
    downstream = torch.randn(30, 3, dtype=torch.double)
    points, gradients = torch.randn(5, 5, dtype=torch.double), torch.randn(5, 3, dtype=torch.double)
    points = points / (points @ last)[:, None] if biased else points
    values = curvature(points @ layer.T)[0] * (gradients @ downstream.T)
    left = torch.linalg.qr(values.T)[0]
    case = CurveProblem(layer, last if biased else None, left, downstream, curvature)
    return case, torch.cat([points, gradients], 1)


def residual(case, point):
    gradient = curvature(case.layer @ point[:5])[0] * (case.downstream @ point[5:])
    return (gradient - case.left @ (case.left.T @ gradient)) / gradient.norm()


@pytest.mark.parametrize("biased", [True, False])
def test_gradient_and_matrix_are_those_of_automatic_differentiation(biased):
    case, _ = problem(biased)
    directions = case.directions()
    points = case.onto_plane(torch.randn(3, 8, dtype=torch.double))
    gradient, matrix = case.normal_equations(directions, case.evaluate(points))
    for row, point in enumerate(points):
        jacobian = torch.autograd.functional.jacobian(
            lambda move, at=point: residual(case, at + directions @ move),
            torch.zeros(directions.shape[1], dtype=torch.double),
        )
        assert torch.allclose(gradient[row], jacobian.T @ residual(case, point))
        assert torch.allclose(matrix[row], jacobian.T @ jacobian)


@pytest.mark.parametrize("biased", [True, False])
def test_searches_from_near_a_true_point_end_there(biased):
    case, points = problem(biased)
    assert float(case.evaluate(points)[-1].max()) < 1e-20
    starts = case.starts(points[:, :5] + 0.02 * torch.randn(5, 5, dtype=torch.double))
    ends, residuals = search(case, starts, 60)
    assert float(residuals.max()) < 1e-16
    assert float(torch.cdist(ends[:, :5], points[:, :5]).min(1).values.max()) < 1e-5
