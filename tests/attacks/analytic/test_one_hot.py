"""One-hot columns give equations with which rows are found that are linearly dependent."""

from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import two_spans
from leakgauge.attacks.analytic.one_hot import OneHotProblem, one_hot_columns
from leakgauge.attacks.analytic.peeling import chain_of
from leakgauge.federation.client import fedsgd
from tests.attacks.analytic.cases import client, dense, people, rows_right, table_network

PEOPLE = people(200)


def message(rows, network=None):
    return fedsgd(network or table_network(), PEOPLE.share(range(rows)))[0]


def test_the_matrix_gives_the_columns_as_the_table_has_them():
    matrix = one_hot_columns(chain_of(message(4)))
    inputs = PEOPLE.spec.normalise(PEOPLE.inputs.double())
    augmented = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
    assert torch.allclose(augmented @ matrix.T, PEOPLE.inputs.double()[:, 3:], atol=1e-6)


def test_pictures_have_no_such_columns():
    assert one_hot_columns(chain_of(client(dense(48, 24), 4)[0])) is None


def test_the_normal_equations_are_those_of_the_residuals():
    draw = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.double)

    span = torch.linalg.qr(random(13, 5))[0]
    problem = OneHotProblem(random(12, 4), random(4), span, lambda z: (z.tanh(), 1 - z.tanh() ** 2), random(6, 4))
    points, directions = random(3, 4), problem.directions()
    gradient, _ = problem.normal_equations(directions, problem.evaluate(points))
    for row, point in enumerate(points):
        free = torch.zeros(3, dtype=torch.double, requires_grad=True)
        values = (point + directions @ free)[None]
        hot = values @ problem.hot.T
        unit = torch.cat([(values @ problem.layer.T).tanh(), torch.ones(1, 1)], 1)
        unit = unit / unit.norm()
        loss = ((unit - unit @ span @ span.T).square().sum() + (hot**2 - hot).square().mean()) / 2
        assert 2 * loss.item() == pytest.approx(problem.evaluate(points)[-1][row].item())
        assert torch.allclose(torch.autograd.grad(loss, free)[0], gradient[row])


@pytest.mark.parametrize("rows", [8, 36, 48])
def test_more_rows_than_the_table_has_independent_columns_are_solved_for(rows):
    """31 columns of six features have 26 independent directions. The second layer still tells the rows apart."""
    result = two_spans()(message(rows))
    assert rows_right(result, PEOPLE.share(range(rows))) == (rows, 0)
    assert f"{rows} of {rows} samples solved for and proven" in str(result.outcome)


def test_without_the_names_of_the_columns_dependent_rows_are_still_not_proven_falsely():
    unnamed = replace(PEOPLE, spec=replace(PEOPLE.spec, columns=()))
    result = two_spans(attempts=2)(fedsgd(table_network(), unnamed.share(range(40)))[0])
    assert rows_right(result, unnamed.share(range(40)))[1] == 0


def test_two_rows_that_the_second_layer_merges_do_not_hide_the_others():
    """The same row with both labels, slightly changed: both gradients have the same direction in the second layer."""
    share = PEOPLE.share([*range(12), 11])
    share.inputs[12, 0] += 0.01
    share.targets[12] = 1 - share.targets[11]
    observation, _ = fedsgd(table_network(), share)
    right, wrong = rows_right(two_spans()(observation), share)
    assert right >= 11
    assert wrong == 0
