"""Bounds against closed forms, Opacus's accountant, a Monte Carlo estimate, and the limits that they must have."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import bounds
from leakgauge.evaluation.bounds import (
    PRIORS,
    dpsgd_advantage,
    dpsgd_bound,
    dpsgd_success,
    epsilon_bound,
    epsilon_success,
    supports_nothing_found,
)
from tests.shared import LazyModule

accountants = LazyModule("opacus.accountants")
MECHANISMS = [(1.0, 0.1, 30), (0.5, 0.1, 10), (2.0, 0.5, 10), (0.3, 0.05, 20)]


def sampled_success(noise, rate, steps, prior, draws=100_000):
    """Return the power of the likelihood-ratio test on random draws, as Hayes et al. estimate it."""
    random = np.random.default_rng(1)

    def ratios(drawn):
        values = random.normal(0, noise, (steps, draws)) + drawn
        return np.log1p(rate * np.expm1((2 * values - 1) / (2 * noise**2))).sum(0)

    without = ratios(0)
    with_sample = ratios(random.random((steps, draws)) < rate)
    return float((with_sample > np.quantile(without, 1 - prior)).mean())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("prior", [0.5, 0.1, 0.01])
def test_the_bound_is_the_power_of_the_best_test(mechanism, prior):
    deviation = 4 * math.sqrt(1 / 100_000) * (0.5 + 6 * math.sqrt(prior))
    assert dpsgd_success(*mechanism, prior) == pytest.approx(sampled_success(*mechanism, prior), abs=deviation)


@pytest.mark.parametrize(("noise", "steps"), [(4.0, 1), (2.0, 5), (10.0, 100)])
@pytest.mark.parametrize("prior", [0.5, 0.1, 0.001])
def test_a_full_batch_has_a_closed_form_which_the_grid_meets_from_above(noise, steps, prior):
    closed = norm.cdf(norm.ppf(prior) + math.sqrt(steps) / noise)
    assert dpsgd_success(noise, 1.0, steps, prior) == pytest.approx(closed, abs=1e-12)
    on_grid = dpsgd_success(noise, 1 - 1e-9, steps, prior)
    assert closed - 1e-8 <= on_grid < closed + 2e-4
    advantage = 2 * norm.cdf(math.sqrt(steps) / noise / 2) - 1
    assert dpsgd_advantage(noise, 1.0, steps) == pytest.approx(advantage, abs=1e-12)
    assert dpsgd_advantage(noise, 1 - 1e-9, steps) == pytest.approx(advantage, abs=2e-4)


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_one_step_has_a_closed_form(rate):
    """The best test of one step is a limit on the noised value."""
    for prior in PRIORS:
        limit = norm.isf(prior) * 0.8
        closed = (1 - rate) * prior + rate * norm.sf((limit - 1) / 0.8)
        assert dpsgd_success(0.8, rate, 1, prior) == pytest.approx(closed, abs=1e-4)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_epsilon_of_the_same_curve_is_what_opacus_accounts(mechanism):
    """Delta at epsilon is the largest distance of the curve from a line of slope exp(epsilon)."""
    noise, rate, steps = mechanism
    accountant = accountants.create_accountant("prv")
    accountant.history = [(noise, rate, steps)]
    epsilon = accountant.get_epsilon(delta=1e-3)
    level, power = bounds._curve(*mechanism)
    assert float((power - math.exp(epsilon) * level).max()) == pytest.approx(1e-3, rel=0.05)


def test_the_epsilon_bound_is_never_tighter_than_the_mechanisms_own():
    accountant = accountants.create_accountant("prv")
    accountant.history = [(1.0, 0.1, 30)]
    epsilon = accountant.get_epsilon(delta=1e-5)
    for prior in PRIORS:
        assert dpsgd_success(1.0, 0.1, 30, prior) < epsilon_success(epsilon, 1e-5, prior)


@pytest.mark.parametrize("prior", [0.5, 0.1, 0.001])
def test_more_noise_fewer_steps_and_rarer_draws_lower_the_bound(prior):
    middle = dpsgd_success(1.0, 0.1, 20, prior)
    assert prior < dpsgd_success(1.5, 0.1, 20, prior) < middle < dpsgd_success(0.7, 0.1, 20, prior) < 1
    assert prior < dpsgd_success(1.0, 0.1, 10, prior) < middle < dpsgd_success(1.0, 0.1, 40, prior) < 1
    assert prior < dpsgd_success(1.0, 0.05, 20, prior) < middle < dpsgd_success(1.0, 0.2, 20, prior) < 1
    assert dpsgd_success(1.0, 0.1, 20, prior / 2) < middle


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_endless_noise_leaves_the_prior(rate):
    for prior in PRIORS:
        assert dpsgd_success(1e5, rate, 10, prior) == pytest.approx(prior, abs=1e-4)
    assert epsilon_success(0.0, 0.0, 0.3) == pytest.approx(0.3)


def test_without_noise_only_the_draw_protects():
    """A sample that no step draws stays unknown."""
    assert dpsgd_success(1e-3, 1.0, 1, 0.1) == pytest.approx(1.0)
    never = 0.9**5
    assert dpsgd_success(1e-3, 0.1, 5, 0.1) == pytest.approx(never * 0.1 + 1 - never)
    assert dpsgd_success(0.1, 0.1, 5, 0.1) == pytest.approx(never * 0.1 + 1 - never, abs=1e-3)


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_the_advantage_is_the_largest_gain_of_any_prior(rate):
    gains = [dpsgd_success(1.0, rate, 5, prior) - prior for prior in np.linspace(0.01, 0.99, 99)]
    assert max(gains) == pytest.approx(dpsgd_advantage(1.0, rate, 5), abs=2e-3)


def test_many_steps_are_quick_and_near_the_central_limit():
    """With many steps, the pair is nearly Gaussian (Bu et al. 2020)."""
    noise, rate, steps = 1.0, 0.003, 20_000
    mean = rate * math.sqrt(steps * math.expm1(1 / noise**2))
    for prior in (0.5, 0.1):
        assert dpsgd_success(noise, rate, steps, prior) == pytest.approx(norm.cdf(norm.ppf(prior) + mean), abs=0.02)


def test_the_sentence_never_claims_more_than_the_proof():
    bound = dpsgd_bound(4.0, 1.0, 1)
    assert "one of 10 candidates and is right with probability 0.10" in bound.sentence
    assert "at most 0.16 with it" in bound.sentence  # 0.1511, rounded up
    assert not bound.useless
    share = dpsgd_bound(4.0, 1.0, 1, prior=0.03)
    assert "who recovers a sample with probability 0.03" in share.sentence
    weak = dpsgd_bound(0.1, 1.0, 1)
    assert weak.useless
    assert "excludes next to nothing" in weak.sentence
    assert "DP-SGD with noise multiplier 4, sampling rate 1 and 1 step." in bound.assumptions[0]


def test_only_strong_proofs_support_that_nothing_was_found():
    assert supports_nothing_found(dpsgd_bound(5.0, 1.0, 1))
    assert not supports_nothing_found(dpsgd_bound(3.0, 1.0, 1))
    assert supports_nothing_found(epsilon_bound(0.1, 1e-5))
    assert not supports_nothing_found(epsilon_bound(1.0, 1e-5))


def test_a_few_samples_revealed_completely_support_nothing():
    """One step that draws three of a hundred samples and adds almost no noise has a small advantage."""
    bound = dpsgd_bound(0.05, 0.03, 1)
    assert bound.advantage < 0.1
    assert dict(bound.ladder)[0.1] < 0.16
    assert not supports_nothing_found(bound)


@pytest.mark.parametrize(
    "arguments", [(0.0, 0.5, 1, 0.1), (1.0, 0.0, 1, 0.1), (1.0, 1.5, 1, 0.1), (1.0, 0.5, 0, 0.1), (1.0, 0.5, 1, 1.1)]
)
def test_what_is_no_mechanism_is_refused(arguments):
    with pytest.raises(InvalidInput):
        dpsgd_success(*arguments)
    with pytest.raises(InvalidInput):
        epsilon_success(-1.0, 0.0, 0.1)
