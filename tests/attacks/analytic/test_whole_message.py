"""The equations of the whole message, against finite differences and the true samples."""

import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks.analytic import whole_message
from leakgauge.attacks.analytic.coordinates import coordinates_of
from leakgauge.attacks.analytic.gauss_newton import _unknowns
from leakgauge.attacks.analytic.whole_message import WholeMessage, in_double
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedavg, fedsgd

DIGITS = data.load("digits")


def problem(power=0.5, **training):
    model = models.lenet(shape=(1, 8, 8), activation="sigmoid", seed=0)
    share = DIGITS.share([3])
    observation, truth = fedavg(model, share, **training) if training else fedsgd(model, share)
    message = in_double(observation)
    unknowns = _unknowns(message, coordinates_of(observation), generator(0, "labels"))
    point = observation.data.normalise(truth.inputs).double().flatten()
    return WholeMessage(message, unknowns, power, generator(0, "rows")), point


@pytest.mark.parametrize("training", [{}, {"lr": 0.1, "epochs": 3}])
def test_the_true_sample_solves_the_equations_and_others_do_not(training):
    equations, truth = problem(**training)
    assert equations.relative_residual(truth) < 2e-5
    assert equations.relative_residual(truth.roll(1)) > 0.01


@pytest.mark.parametrize("limit", [25_000_000, 64 * 500])
def test_derivatives_agree_with_finite_differences(limit, monkeypatch):
    monkeypatch.setattr(whole_message, "LARGEST_MATRIX", limit)
    equations, truth = problem(lr=0.1, epochs=2)
    move = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    derivatives = move @ equations.smoothed(0.1).derivatives(truth)
    after, before = (equations.smoothed(0.1).evaluate((truth + step * move)[None])[1][0] for step in (1e-5, -1e-5))
    torch.testing.assert_close(derivatives, (after - before) / 2e-5, rtol=1e-5, atol=1e-7)
    assert derivatives.shape[0] < limit / 64 + 200


def test_a_smooth_sample_has_a_smaller_residual_only_while_smoothness_is_demanded():
    equations, truth = problem()
    plain = equations.evaluate(truth[None])[-1]
    assert float(equations.smoothed(1.0).evaluate(truth[None])[-1]) > float(plain) + 1.0
    assert float(equations.smoothed(0.0).evaluate(truth[None])[-1]) == float(plain)
