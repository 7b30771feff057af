r"""Upper bounds on the success of every attack, for defences with a proof (reconstruction robustness).

Balle, Cherubin and Hayes (2022) define reconstruction robustness. An attacker knows everything except one sample, and
would guess this sample with probability :math:`\kappa` without the message. The bound :math:`\gamma(\kappa)` limits the
probability that the attacker is right with the message, whatever the attack is.

For :math:`T` steps of DP-SGD with noise multiplier :math:`\sigma` and sampling rate :math:`q`, theorem 2 of Hayes,
Mahloujifar and Balle (2023) gives

.. math::
    \gamma(\kappa) = \sup \{ P^T(E) : Q^T(E) \le \kappa \}, \qquad
    P = (1 - q)\, N(0, \sigma^2) + q\, N(1, \sigma^2), \qquad Q = N(0, \sigma^2).

Here the supremum is over all events :math:`E`, and :math:`P^T` is the distribution of :math:`T` independent draws.
:math:`\gamma(\kappa)` is the power of the best statistical test between :math:`P^T` and :math:`Q^T` with a
false-positive rate of :math:`\kappa`. It is computed in one of three ways:

- With :math:`q = 1`, it is :math:`\Phi(\Phi^{-1}(\kappa) + \sqrt T / \sigma)` (Kaissis et al. 2023).
- With :math:`q < 1`, the paper estimates it by Monte Carlo. This module computes it from the distribution of the
  privacy loss, which is :math:`\log(P / Q)`. The loss of one step is rounded to a grid such that the bound never
  becomes smaller (Doroshenko et al. 2022). Fourier transforms then give the distribution of the sum over all steps.
- From :math:`(\varepsilon, \delta)` alone, :math:`\gamma(\kappa) \le e^\varepsilon \kappa + \delta`.

The largest :math:`\gamma(\kappa) - \kappa` over all :math:`\kappa` is the total variation distance of :math:`P^T` and
:math:`Q^T`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from leakgauge.core.checks import finite, positive, whole_number
from leakgauge.core.errors import InvalidInput

Values = NDArray[np.float64]
#: The priors at which every bound is computed. They are one of 2, 10, 100 and 1,000 candidates.
PRIORS = (0.5, 0.1, 0.01, 0.001)
#: The largest success at these priors that supports "nothing above chance". DP-SGD with epsilon 1 and delta 1e-5 is
#: within these limits, and with epsilon 2 it is not.
LARGEST_SUCCESS = {0.5: 0.62, 0.1: 0.16, 0.01: 0.022, 0.001: 0.003}
#: From this success on, a bound excludes next to nothing.
USELESS = 0.9
#: The largest privacy loss of one step for which the distribution is computed.
LARGEST_LOSS = 300.0
#: The number of grid cells within the standard deviation of one step's loss.
CELLS = 25
#: The largest number of grid cells of one step, and of the composed distribution.
MOST_CELLS_OF_A_STEP = 10_000
MOST_CELLS = 2**20
#: The logarithm of the probability that is cut off at each end of a distribution.
TAIL = -36.0
#: The number of standard deviations at which the noise of one step is cut off.
CUT = 9.0
#: The allowance for rounding errors of the Fourier transforms.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bound:
    """An upper bound on the probability that any attack recovers one sample.

    Args:
        prior: The probability that an attacker recovers the sample without the message.
        success: The largest probability that an attacker recovers the sample with the message.
        ladder: The value of ``success`` for several priors (:data:`PRIORS`), as pairs of prior and success.
        advantage: The largest difference between ``success`` and ``prior``, over all priors.
        mechanism: The settings from which the bound follows, in words.
        epsilon: The privacy budget, or ``None`` if it was not computed.
        delta: The probability that the privacy budget is exceeded, or ``None`` if no budget was computed.
    """

    prior: float
    success: float
    ladder: tuple[tuple[float, float], ...]
    advantage: float
    mechanism: str
    epsilon: float | None = None
    delta: float | None = None

    @property
    def useless(self) -> bool:
        """Whether the bound is too weak to be useful, because it allows a probability of success of 90% or more."""
        return self.success >= USELESS

    @property
    def sentence(self) -> str:
        """A sentence that describes the bound."""
        candidates = round(1 / self.prior) if self.prior else 0
        if candidates > 1 and math.isclose(candidates * self.prior, 1.0):
            attacker = f"who picks one of {candidates:,} candidates and is right"
        else:
            attacker = "who recovers a sample"
        words = (
            f"Whatever the attack: an attacker {attacker} with probability {_shown(self.prior)} without the message "
            f"is right with probability at most {_shown_above(self.success)} with it."
        )
        if self.useless:
            words += " The proof therefore excludes next to nothing. Only a smaller epsilon or more noise helps."
        return words

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences about the conditions under which the proof holds."""
        return (
            f"The bound follows from {self.mechanism}. It covers attacks that nobody has invented yet.",
            "It is about one sample of the client, and about an attacker who may know all other samples. It does not "
            "limit what is learned about the client as a whole, such as its label counts, or about a person with "
            "several samples.",
            "It holds for an honest client whose noise nobody can predict and whose batches are drawn by Poisson "
            "sampling, as here. The number of samples is public. A real client that shuffles its samples into batches "
            "instead of drawing them has no such proof.",
        )


def _shown(probability: float) -> str:
    return f"{probability:.2f}" if probability >= 0.095 else f"{probability:.2g}"


def _shown_above(probability: float) -> str:
    """Return a proven upper limit of a probability as text, rounded up so that it stays a proven limit."""
    digits = 2 if probability >= 0.095 else 1 - math.floor(math.log10(max(probability, 1e-300)))
    raised = min(1.0, math.ceil(round(probability * 10**digits, 6)) / 10**digits)
    return _shown(raised)


def dpsgd_bound(noise: float, rate: float, steps: int, prior: float = 0.1) -> Bound:
    """Return the upper bound on the success of every attack on DP-SGD (Hayes et al. 2023, theorem 2).

    Args:
        noise: The noise multiplier, which is the standard deviation of the noise divided by the clipping norm.
        rate: The probability that a step draws the sample.
        steps: The number of steps of all messages that the attacker sees.
        prior: The probability of success without the message.
    """
    _check_prior(prior)
    return Bound(
        prior,
        dpsgd_success(noise, rate, steps, prior),
        tuple((value, dpsgd_success(noise, rate, steps, value)) for value in PRIORS),
        dpsgd_advantage(noise, rate, steps),
        f"DP-SGD with noise multiplier {noise:.3g}, sampling rate {rate:.3g} and {steps} step{'s' * (steps > 1)}",
    )


def epsilon_bound(epsilon: float, delta: float, prior: float = 0.1) -> Bound:
    r"""Return the upper bound on the success of every attack that follows from differential privacy alone.

    With the prior :math:`\kappa`, the success is at most :math:`e^\varepsilon \kappa + \delta`, and also at most
    :math:`1-e^{-\varepsilon}(1-\kappa-\delta)` (Kairouz et al. 2015, theorem 2.1).

    Args:
        epsilon: The privacy budget.
        delta: The probability that the privacy budget is exceeded.
        prior: The probability of success without the message.
    """
    _check_prior(prior)
    return Bound(
        prior,
        epsilon_success(epsilon, delta, prior),
        tuple((value, epsilon_success(epsilon, delta, value)) for value in PRIORS),
        min(1.0, math.tanh(epsilon / 2) * (1 - delta) + delta),
        f"differential privacy with epsilon {epsilon:.3g} and delta {delta:.1g}",
        epsilon,
        delta,
    )


def supports_nothing_found(bound: Bound) -> bool:
    """Return whether the bound alone proves that no attack on one sample does meaningfully better than chance.

    For each prior in :data:`LARGEST_SUCCESS`, the bound must be below the limit given there. A prior is the probability
    of success without the message. Small priors are checked too, because a defence may reveal a few of many samples
    completely. The probability of success is then only a little above a large prior, but far above a small prior.

    Args:
        bound: The proven upper bound on the success of every attack.
    """
    return all(success <= LARGEST_SUCCESS[prior] for prior, success in bound.ladder)


def epsilon_success(epsilon: float, delta: float, prior: float) -> float:
    """Return the largest probability with which an attack can recover a sample, given differential privacy.

    >>> round(epsilon_success(0.0, 0.0, 0.1), 4)
    0.1

    Args:
        epsilon: The privacy budget.
        delta: The probability that the privacy budget is exceeded.
        prior: The probability of success without the message.
    """
    _check_prior(prior)
    if not epsilon >= 0 or not 0 <= delta <= 1:
        raise InvalidInput(f"epsilon must be at least 0 and delta between 0 and 1, not {epsilon!r} and {delta!r}")
    first = prior * math.exp(min(epsilon, LARGEST_LOSS)) + delta if prior else delta
    return min(1.0, first, 1 - math.exp(-epsilon) * (1 - prior - delta))


def dpsgd_success(noise: float, rate: float, steps: int, prior: float) -> float:
    """Return the largest probability with which an attack can recover a sample from DP-SGD (Hayes et al. 2023).

    >>> round(dpsgd_success(4.0, 1.0, 1, 0.1), 4)
    0.1511

    Args:
        noise: The noise multiplier, which is the standard deviation of the noise divided by the clipping norm.
        rate: The probability that a step draws the sample.
        steps: The number of steps.
        prior: The probability of success without the message.
    """
    _check_prior(prior)
    _check_mechanism(noise, rate, steps)
    if prior in (0.0, 1.0) and rate == 1:
        return prior
    if rate == 1:
        return float(ndtr(ndtri(prior) + math.sqrt(steps) / noise))
    never_drawn = (1 - rate) ** steps
    exposed = never_drawn * prior + 1 - never_drawn
    curve = _curve(float(noise), float(rate), int(steps))
    if curve is None:
        return exposed
    return max(prior, min(exposed, float(np.interp(prior, *curve)) + ROUNDING))


def dpsgd_advantage(noise: float, rate: float, steps: int) -> float:
    """Return the largest amount, over all priors, by which DP-SGD's messages can raise the probability of success.

    Success means that an attacker recovers a sample. The prior is the probability of success without the messages.

    Args:
        noise: The noise multiplier, which is the standard deviation of the noise divided by the clipping norm.
        rate: The probability that a step draws the sample.
        steps: The number of steps.
    """
    _check_mechanism(noise, rate, steps)
    if rate == 1:
        return float(2 * ndtr(math.sqrt(steps) / noise / 2) - 1)
    exposed = 1 - (1 - rate) ** steps
    curve = _curve(float(noise), float(rate), int(steps))
    return exposed if curve is None else min(exposed, float((curve[1] - curve[0]).max()) + ROUNDING)


def _check_prior(prior: float) -> None:
    finite("the prior probability of success", prior)
    if not 0 <= prior <= 1:
        raise InvalidInput(f"the prior probability of success must lie between 0 and 1, not {prior!r}")


def _check_mechanism(noise: float, rate: float, steps: int) -> None:
    positive("the noise multiplier", noise)
    positive("the sampling rate", rate, up_to=1.0)
    whole_number("the number of steps", steps)


@lru_cache(maxsize=64)
def _curve(noise: float, rate: float, steps: int) -> tuple[Values, Values] | None:
    """Return the false-positive rates and the powers of the best tests for the presence of the sample.

    The result is ``None`` if the privacy loss of one step is too large to be computed.
    """
    if _loss(1 + CUT * noise, noise, rate) > LARGEST_LOSS:
        return None
    width = _cell_width(noise, rate)
    for _ in range(40):
        one = _one_step(noise, rate, width)
        low, high = _range(one, steps, width)
        if high - low < MOST_CELLS:
            break
        width *= max(2.0, (high - low) / MOST_CELLS)
    with_sample, without = (_composed(masses, one.first, steps, low, high) for masses in (one.with_sample, one.without))
    certain = 1 - (1 - one.certain) ** steps
    level = np.concatenate([[0.0], np.minimum(np.cumsum(without[::-1]), 1.0), [1.0]])
    power = certain + np.concatenate([[0.0], np.cumsum(with_sample[::-1]), [1 - certain]])
    return level, np.minimum(np.maximum.accumulate(power), 1.0)


@dataclass(frozen=True, eq=False)
class _OneStep:
    """The distribution of one step's privacy loss, rounded to a grid.

    Args:
        first: The loss at the first grid point, as a multiple of the grid's width.
        with_sample: The probability of each loss if the client has the sample.
        without: The probability of each loss if the client does not have the sample.
        certain: The probability of an infinite loss if the client has the sample.
    """

    first: int
    with_sample: Values
    without: Values
    certain: float


def _loss(noised: float | Values, noise: float, rate: float) -> Values:
    """Return the privacy loss of one step, which is the log-likelihood ratio of a value with and without the sample."""
    exponent = (2 * np.asarray(noised, dtype=np.float64) - 1) / (2 * noise**2)
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def _cell_width(noise: float, rate: float) -> float:
    """Return the width of a grid cell, which is a share of the standard deviation of one step's loss.

    With little noise, this deviation is tiny and losses are large. A lower limit then keeps the number of cells small.
    """
    noised = np.linspace(-CUT * noise, CUT * noise, 4001)
    weights = np.exp(-0.5 * (noised / noise) ** 2)
    losses = _loss(noised, noise, rate)
    mean = np.average(losses, weights=weights)
    deviation = float(np.sqrt(np.average((losses - mean) ** 2, weights=weights)))
    span = float(_loss(1 + CUT * noise, noise, rate) - losses[0])
    return max(deviation / CELLS, span / MOST_CELLS_OF_A_STEP)


def _one_step(noise: float, rate: float, width: float) -> _OneStep:
    """Round the distribution of one step's privacy loss to a grid. Rounding never lowers the bound on the success.

    The probability between two grid points is divided between these two points. The total probability stays the same,
    both for training with the sample and for training without it.
    """
    ends = _loss(np.array([-CUT * noise, 1 + CUT * noise]), noise, rate) / width
    first, last = math.floor(ends[0]), math.ceil(ends[1]) + 1
    losses = width * np.arange(first, last + 1)
    ratios = np.expm1(losses) + rate  # the likelihood ratio minus the part of batches without the sample
    with np.errstate(divide="ignore", invalid="ignore"):
        points = np.where(ratios > 0, noise**2 * np.log(np.maximum(ratios, 1e-300) / rate) + 0.5, -np.inf)
    without = _mass(points / noise)
    drawn = _mass((points - 1) / noise)
    with_sample = (1 - rate) * without + rate * drawn
    gap = np.diff(np.exp(losses))
    upper = np.clip((rate * drawn - ratios[:-1] * without) / gap, 0, without)
    lower = without - upper
    low_mass, high_mass = np.zeros_like(losses), np.zeros_like(losses)
    low_mass[:-1] += lower
    low_mass[1:] += upper
    shares = np.clip((np.exp(losses[1:]) * upper) / np.maximum(with_sample, 1e-300), 0, 1)
    high_mass[:-1] += with_sample * (1 - shares)
    high_mass[1:] += with_sample * shares
    below = (1 - rate) * ndtr(points[0] / noise) + rate * ndtr((points[0] - 1) / noise)
    high_mass[0] += below
    low_mass[0] += below * math.exp(-losses[0])
    certain = (1 - rate) * ndtr(-points[-1] / noise) + rate * ndtr((1 - points[-1]) / noise)
    return _OneStep(first, high_mass, low_mass, float(certain))


def _mass(points: Values) -> Values:
    """Return the probability of a standard normal variable between consecutive points, with a small relative error."""
    upper_half = points[:-1] > 0
    logs_below, logs_above = log_ndtr(points), log_ndtr(-points)
    from_below = np.exp(logs_below[1:]) - np.exp(logs_below[:-1])
    from_above = np.exp(logs_above[:-1]) - np.exp(logs_above[1:])
    return np.asarray(np.where(upper_half, from_above, from_below).clip(0), dtype=np.float64)


def _range(one: _OneStep, steps: int, width: float) -> tuple[int, int]:
    """Return the range, in grid cells, in which the sum of the privacy losses of all steps lies almost certainly."""
    losses = width * np.arange(one.first, one.first + len(one.with_sample))
    tilts = np.geomspace(1e-3, 1e3, 80) / max(1e-12, float(np.ptp(losses)))
    ends = []
    for masses in (one.with_sample, one.without):
        logs = np.log(np.maximum(masses, 1e-300))
        for sign in (1.0, -1.0):
            moments = np.array([np.logaddexp.reduce(logs + sign * tilt * losses) for tilt in tilts])
            reach = ((steps * moments - TAIL) / tilts).min()
            ends.append(sign * min(reach, steps * float((sign * losses).max())))
    return math.floor(min(ends) / width) - 1, math.ceil(max(ends) / width) + 1


def _composed(masses: Values, first: int, steps: int, low: int, high: int) -> Values:
    """Return the distribution of the sum of all steps' privacy losses, for sums from cell ``low`` to cell ``high``."""
    size = 1 << (max(high - low + 1, len(masses)) - 1).bit_length()
    cycle = np.zeros(size)
    np.add.at(cycle, np.arange(first, first + len(masses)) % size, masses)
    sums = np.fft.irfft(np.fft.rfft(cycle) ** steps, size).clip(0)
    composed: Values = sums[np.arange(low, high + 1) % size]
    return composed
