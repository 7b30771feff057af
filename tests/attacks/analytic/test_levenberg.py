"""The normal equations of the search agree with automatic differentiation, and the search finds a known point."""

import torch

from leakgauge.attacks.analytic.levenberg import Problem, search


def activation(values):
    return torch.tanh(values), 1 - torch.tanh(values).square()


def problem(seed=0):
    torch.manual_seed(seed)
    layer, last = torch.randn(30, 5, dtype=torch.double) / 3, torch.randn(5, dtype=torch.double)
    points = torch.randn(5, 5, dtype=torch.double)
    points = points / (points @ last)[:, None]
    values = torch.cat([activation(points @ layer.T)[0], torch.ones(5, 1, dtype=torch.double)], 1)
    return Problem(layer, last, torch.linalg.qr(values.T)[0], activation), points


def residual(case, point):
    augmented = torch.cat([torch.tanh(case.layer @ point), point.new_ones(1)])
    return (augmented - case.span @ (case.span.T @ augmented)) / augmented.norm()


def test_gradient_and_matrix_are_those_of_automatic_differentiation():
    case, _ = problem()
    directions = case.directions()
    points = case.onto_plane(torch.randn(3, 5, dtype=torch.double))
    gradient, matrix = case.normal_equations(directions, case.evaluate(points))
    for row, point in enumerate(points):
        jacobian = torch.autograd.functional.jacobian(
            lambda move, at=point: residual(case, at + directions @ move), torch.zeros(4, dtype=torch.double)
        )
        assert torch.allclose(gradient[row], jacobian.T @ residual(case, point))
        assert torch.allclose(matrix[row], jacobian.T @ jacobian)


def test_points_stay_on_the_plane_and_end_at_true_points():
    case, points = problem()
    assert float(case.residuals(points).max()) < 1e-20
    starts = points + 0.05 * torch.randn_like(points)
    ends, residuals = search(case, starts, 60)
    assert torch.allclose(ends @ case.last, torch.ones(5, dtype=torch.double))
    assert float(residuals.max()) < 1e-16
    assert float(torch.cdist(ends, points).min(1).values.max()) < 1e-6


def test_a_span_of_one_dimension_has_one_point():
    layer, last = torch.randn(6, 1, dtype=torch.double), torch.tensor([0.5], dtype=torch.double)
    span = torch.linalg.qr(torch.randn(7, 1, dtype=torch.double))[0]
    ends, _ = search(Problem(layer, last, span, activation), torch.randn(3, 1, dtype=torch.double), 5)
    assert torch.allclose(ends, torch.full((3, 1), 2.0, dtype=torch.double))
