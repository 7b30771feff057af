r"""The exact and the statistical attack on the optimum of a linear regression (LMRA, propositions 1 and 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.local_model.base import Estimate, LocalModelAttack, relative
from leakgauge.attacks.local_model.messages import Messages
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import boolean, not_negative
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report

#: The largest number of parameters d for which a d x d matrix is formed.
LARGEST_LINEAR = 5_000
#: The share of the updates' changes above which rounds contradict a single linear map. Rounding stays far below it.
CONTRADICTION = 1e-3
#: The penalties that cross-validation chooses from, as shares of the largest squared singular value of the models.
PENALTIES = (0.0, *(10.0 ** (-exponent / 2) for exponent in range(24, -3, -1)))


@dataclass(frozen=True)
class Exact(LocalModelAttack):
    r"""The attack that solves for the optimum of a linear regression from d + 1 full-batch rounds (proposition 1).

    Let :math:`\theta_t` be the model that the client gets in round :math:`t`, :math:`u_t` its update, d the number of
    parameters and :math:`\theta^*` the optimum. By equation 15, :math:`u_t = W(\theta^* - \theta_t)` with the same
    invertible :math:`W` in every round, whatever the learning rate and the number of local steps. Let
    :math:`\bar\theta, \bar u` be the means over rounds. Weights :math:`a` with :math:`\bar u + \sum_t a_t (u_t - \bar
    u) = 0` give :math:`\theta^* = \bar\theta + \sum_t a_t (\theta_t - \bar\theta)`. This is one linear system with one
    unknown per round, which costs :math:`O(d^3)`. The proof of proposition 1 solves d systems instead.

    There may be too few rounds, or the models of the rounds may span fewer than d dimensions. The result is then the
    model with the shortest predicted update. Among several such models, it is the one nearest to :math:`\bar\theta`.
    The ``uncertainty`` is the length of this update divided by a ratio. The ratio is the change of the update divided
    by the change of the model, in the observed direction with the smallest ratio. In directions that were not observed,
    the ratio may be even smaller.

    Args:
        tolerance: The smallest singular value that counts as above zero, as a share of the largest singular value.
    """

    tolerance: float = 1e-13

    def __post_init__(self) -> None:
        not_negative("tolerance", self.tolerance, below=1)

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Solve for the model at which the client's update vanishes."""
        sent, updates = messages.sent.double(), messages.updates.double()
        moved, changed = sent - sent.mean(0), updates - updates.mean(0)
        left, values, right = torch.linalg.svd(changed, full_matrices=False)
        nonzero = (
            values > self.tolerance * values[0] if float(values[0]) > 0 else torch.zeros_like(values, dtype=torch.bool)
        )
        rank = int(nonzero.sum())
        mixture = -left[:, nonzero] @ ((right[nonzero] @ updates.mean(0)) / values[nonzero])
        vector = sent.mean(0) + mixture @ moved
        remainder = float((updates.mean(0) + mixture @ changed).norm())
        rates = values[nonzero] / (left[:, nonzero].T @ moved).norm(dim=1) if rank else values.new_ones(1)
        contradiction = _contradiction(moved, changed)
        uncertainty = relative(remainder + contradiction * float(changed.norm()), float(rates.min()))
        outcome = _rank_in_words(rank, *sent.shape)
        if contradiction > CONTRADICTION:
            outcome = (
                f"no single linear map explains the rounds. The best one leaves {contradiction:.1%} of the updates' "
                "changes, as with small batches or noise. LeastSquares() is made for such rounds"
            )
        figures = {"rank": float(rank), "update_left": remainder, "contradiction": contradiction}
        return Estimate(vector, outcome, uncertainty, figures)


def _contradiction(moved: Tensor, changed: Tensor) -> float:
    """Return the share of the updates' changes that no linear map of the models explains.

    The share is 0 if there are too few rounds to decide.
    """
    rounds, size = moved.shape
    total = float(changed.norm())
    if rounds <= size + 1 or total == 0:
        return 0.0
    fitted = torch.linalg.lstsq(moved, changed, driver="gelsd").solution
    return float((changed - moved @ fitted).norm()) / total


def _rank_in_words(rank: int, rounds: int, size: int) -> str:
    if rank == size:
        return f"the update map is known in all {size} directions, so the optimum is determined"
    if rounds <= size:
        return (
            f"too few rounds: {rounds} show the update in {rank} of {size} directions. The result is the solution "
            f"nearest to the mean model. Record {size + 1 - rounds} more rounds"
        )
    return (
        f"rank-deficient: {rounds} rounds show the update in {rank} of {size} directions only. The result is the "
        "solution nearest to the mean model. Record rounds with other participants"
    )


@dataclass(frozen=True)
class LeastSquares(LocalModelAttack):
    r"""The attack that estimates the optimum of a linear regression from noisy rounds (proposition 3).

    Updates :math:`u_t` are regressed on models :math:`\theta_t`. The estimates :math:`(\hat W, \hat v)` minimise
    :math:`\sum_t \lVert u_t + W\theta_t - v \rVert^2` (equation 31), and :math:`\hat\theta = \hat W^{-1}\hat v`.

    With small batches, the smallest eigenvalues of :math:`\hat W` are mostly noise, and their inverses move
    :math:`\hat\theta` far away. So :math:`\lambda \lVert W - a I \rVert^2` is added to the sum (beyond the paper). The
    number :math:`a` is the best map that treats all directions alike, and leave-one-out cross-validation over rounds
    chooses :math:`\lambda`. Without noise, it chooses 0. ``penalised=False`` is the paper's estimate.

    The ``uncertainty`` is the bound of equation 26 on the error of the paper's estimate at confidence ``1 - failure``,

    .. math:: \frac{2 d}{\lambda_{\min}(\hat W)} (\lVert\hat\theta\rVert + 1)\,
              \hat s \sqrt{\frac{d + 1 + \ln(2/\delta)}{n\,\underline\lambda}}.

    Here d is the number of parameters and n the number of rounds. With :math:`x_t = (\theta_t, -1)`,
    :math:`\underline\lambda` is the smallest eigenvalue of the mean of :math:`x_t x_t^T` over rounds.

    Two quantities of the paper's bound are unknown to the attacker and are replaced by measured ones. The largest
    standard deviation of the residuals over coordinates, :math:`\hat s`, replaces the standard deviation of the noise
    (equation 30). The smallest eigenvalue of the symmetric part of :math:`\hat W` replaces the smallest eigenvalue of
    :math:`W`. The proof estimates each row of :math:`W` from its own set of rounds. This class uses all rounds for
    every row. More rounds only make the estimate more accurate, so the bound still holds. The distance between the two
    estimates is added to the bound, so it also holds for the result.

    Args:
        failure: The probability :math:`\delta` that the optimum lies outside the bound.
        penalised: Whether directions that the rounds hardly show are estimated by the mean of the others.
    """

    failure: float = 0.05
    penalised: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.failure < 1:
            raise InvalidInput(f"failure is a probability between 0 and 1, not {self.failure!r}")
        boolean("penalised", self.penalised)

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Regress the updates on the models, then solve for the model at which the update vanishes."""
        sent, updates = messages.sent.double(), messages.updates.double()
        (rounds, size) = sent.shape
        _check_size(rounds, size)
        design = torch.cat((sent, -sent.new_ones(rounds, 1)), dim=1)
        fitted = torch.linalg.lstsq(design, -updates, driver="gelsd").solution
        rate, constant = fitted[:-1].T, fitted[-1]
        vector = torch.linalg.lstsq(rate, constant, driver="gelsd").solution
        noise = float((design @ fitted + updates).square().sum(0).div(rounds - size - 1).sqrt().max())
        spread = float(torch.linalg.eigvalsh(design.T @ design / rounds)[0])
        slowest = float(torch.linalg.eigvalsh((rate + rate.T) / 2)[0])
        figures = {"noise": noise, "smallest_rate": slowest, "spread": spread}
        bound = self._bound(vector, rounds, figures)
        outcome = f"regression over {rounds} rounds"
        if self.penalised:
            estimate, figures["penalty"] = penalised_optimum(sent, updates)
            bound += float((estimate - vector).norm())
            vector = estimate
        if slowest <= 0:
            outcome += ". The bound is infinite because the fitted map is not positive definite. Record more rounds"
        else:
            outcome += (
                f". It lies within {bound:.3g} of the optimum with probability {1 - self.failure:g} (equation 26)"
            )
        return Estimate(vector, outcome, bound, figures)

    def _bound(self, vector: Tensor, rounds: int, figures: dict[str, float]) -> float:
        """Return the bound of equation 26 on the distance between the estimate and the optimum.

        The bound is infinite if the fitted map is not positive definite.
        """
        if figures["smallest_rate"] <= 0:
            return math.inf
        size = len(vector)
        factor = math.sqrt((size + 1 + math.log(2 / self.failure)) / (rounds * max(figures["spread"], 1e-300)))
        return 2 * size / figures["smallest_rate"] * (float(vector.norm()) + 1) * figures["noise"] * factor


def penalised_optimum(sent: Tensor, updates: Tensor) -> tuple[Tensor, float]:
    """Estimate the optimum with a penalty on the map's distance to a multiple of the identity.

    Args:
        sent: The models that the server sent, (rounds, parameters).
        updates: The client's updates, (rounds, parameters). There are more rounds than parameters plus one.

    Returns:
        The estimate, and the chosen penalty as a share of the largest squared singular value of the models.
    """
    rounds, size = sent.shape
    moved, changed = sent - sent.mean(0), updates - updates.mean(0)
    left, values, right = torch.linalg.svd(moved, full_matrices=False)
    squares = values.square()
    if not float(squares[0]) > 0:
        return sent.mean(0) + updates.mean(0), 0.0
    rate = min(max(-float((moved * changed).sum()) / float(squares.sum()), 1e-3), 1.0)
    rest = left.T @ (changed + rate * moved)
    best, shares, chosen = math.inf, torch.ones_like(values), 0.0
    for penalty in PENALTIES:
        kept = squares / (squares + penalty * squares[0]).clamp_min(1e-300)
        error = changed + rate * moved - left @ (kept[:, None] * rest)
        leverage = left.square() @ kept + 1 / rounds
        across = float((error / (1 - leverage).clamp_min(1e-9)[:, None]).square().sum())
        if across < best:
            best, shares, chosen = across, kept, penalty
    deviation = right.T @ ((shares / values.clamp_min(1e-150))[:, None] * rest)
    matrix = rate * torch.eye(size, dtype=sent.dtype, device=sent.device) - deviation.T
    return sent.mean(0) + torch.linalg.lstsq(matrix, updates.mean(0), driver="gelsd").solution, chosen


def _check_size(rounds: int, size: int) -> None:
    if size > LARGEST_LINEAR:
        raise InvalidInput(
            f"a regression of the whole update map takes a {size} x {size} matrix, which is too large; "
            "use Secant() for this model"
        )
    if rounds <= size + 1:
        raise InvalidInput(
            f"{rounds} rounds are too few for {size} parameters with noise; pass at least {size + 2} rounds, or use "
            "Exact() for full-batch clients and Secant() for any client"
        )


def _is_linear_regression(observation: Observation) -> bool:
    """Return whether the model is a single dense layer that is trained with the squared error."""
    dimensions = [value.ndim for value in observation.sent.values()]
    return observation.training.loss == "mse" and dimensions in ([2], [2, 1])


def _full_batch_regression(observation: Observation) -> Fit:
    if not _is_linear_regression(observation):
        return Fit(False, "proved for linear regression only, and this model is not one")
    training = observation.training
    known = observation.kind == "weights" and training.batch_size is not None and training.samples is not None
    if known and int(training.need("batch_size")) < int(training.need("samples")):
        return Fit(False, "proved for full batches, and this client trains in smaller ones")
    return Fit(True, "a linear regression in full batches, which d + 1 rounds determine")


def _noisy_regression(observation: Observation) -> Fit:
    if not _is_linear_regression(observation):
        return Fit(False, "proved for linear regression only, and this model is not one")
    size = sum(value.numel() for value in observation.sent.values())
    if size > LARGEST_LINEAR:
        return Fit(False, f"made for at most {LARGEST_LINEAR} parameters, and this model has {size}")
    return Fit(True, f"a linear regression, which needs at least {size + 2} rounds")


SPECS = (
    AttackSpec(
        name="exact",
        factory=Exact,
        summary="The optimum of a linear regression from d + 1 rounds of full batches (LMRA, proposition 1).",
        recovers="model",
        reads="rounds",
        fits=_full_batch_regression,
        cost=Cost.INSTANT,
        rank=3,
    ),
    AttackSpec(
        name="least_squares",
        factory=LeastSquares,
        summary="The optimum of a linear regression from noisy rounds, with an error bound (LMRA, proposition 3).",
        recovers="model",
        reads="rounds",
        fits=_noisy_regression,
        cost=Cost.SECONDS,
        rank=3,
    ),
)
