"""The attack that infers a hidden attribute from the equations of a client's gradients (beyond the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.attribute.base import for_tables
from leakgauge.attacks.attribute.problem import GradientProblem
from leakgauge.attacks.attribute.records import Attributes, PublicRecords
from leakgauge.attacks.local_model.base import LocalModel
from leakgauge.attacks.local_model.messages import Messages, steps_in
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly
from leakgauge.core.progress import Report, silent


def by_equations(
    observations: Sequence[Observation],
    records: PublicRecords,
    *,
    rounds: int = 3,
    steps: int = 30,
    prior: Sequence[float] | None = None,
    report: Report = silent,
) -> Attributes:
    r"""Infer the values by solving the equations of the client's gradients by least squares (beyond the paper).

    The client's mean gradient is a linear function of indicators of the hidden values, :math:`g_t = \frac1N \sum_i
    \sum_s p_{is} \nabla\ell(\theta_t; p_i, s, y_i)`. The indicator :math:`p_{is}` is one for the true value of record i
    and zero for all other values. Each parameter of the model gives one equation. For full-batch clients with one local
    step, the attack therefore recovers the attribute if there are far fewer records than parameters. The method of
    conjugate gradients solves for :math:`p`. The solved :math:`p_{is}` may be any numbers, and are called shares. The
    method starts from equal shares. The attack needs the learning rate and the number of local steps.

    The solved shares are zeros and ones plus noise. The prior gives the variance that the shares would have without
    noise. The variance of the noise, :math:`\sigma^2`, is the variance of the shares minus the variance without noise.
    The score of a value is :math:`p_{is} / \sigma^2 + \log P(s)`. If there are more records than equations, the shares
    stay nearly equal. The estimated noise is then zero, and the prior has no effect.

    Args:
        observations: The observations of one client, one per round.
        records: The client's records, without the sensitive attribute.
        rounds: The number of rounds to use, counted from the first round.
        steps: The number of conjugate-gradient steps.
        prior: The shares of the values in the population, if the attacker knows these shares.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    messages = Messages.read(observations)
    problem = GradientProblem(messages, records, list(range(min(rounds, len(messages)))))
    if not problem.scaled:
        raise InvalidInput(
            "by_equations() needs the scale of the client's gradient, which is unknown; supply "
            "observation.knowing(lr=..., epochs=..., batch_size=..., samples=...), or use by_gradient()"
        )
    scores = _solve(problem, records.shares(None).to(messages.sent), steps, report)
    if prior is not None:
        scores = _weigh(scores, records.shares(prior).to(scores))
    outcome = f"least squares over {len(problem.points)} rounds"
    return Attributes(scores.argmax(1), scores, records.values, None, outcome)


def _solve(problem: GradientProblem, shares: Tensor, steps: int, report: Report) -> Tensor:
    """Return the shares for which the predicted gradients are nearest to the client's gradients, (N, values).

    Args:
        problem: The client's gradients, and the function that predicts gradients from shares.
        shares: The starting point, which holds one weight for each possible value of each record, (N, values).
        steps: The number of conjugate-gradient steps.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    residuals = [observed - mixed for observed, mixed in zip(problem.observed, problem.mixed(shares), strict=True)]
    rest = _centred(problem.transposed(residuals))
    direction = rest.clone()
    square = float(rest.square().sum())
    first = square
    for step in range(steps):
        if square <= 1e-12 * first:
            break
        image = problem.mixed(direction)
        length = square / max(sum(float(gradient.square().sum()) for gradient in image), 1e-300)
        shares = shares + length * direction
        rest = rest - length * _centred(problem.transposed(image))
        square, before = float(rest.square().sum()), square
        direction = rest + square / before * direction
        report(step + 1, steps, square)
    return shares


def _weigh(shares: Tensor, prior: Tensor) -> Tensor:
    """Return the score of every value for each record, (N, values).

    Args:
        shares: The solution of the least-squares problem, which is zeros and ones plus noise, (N, values).
        prior: The share of each value in the population, for each record.
    """
    # A few outliers must not dominate the estimate of the noise.
    clamped = shares.clamp(*shares.flatten().quantile(torch.tensor([0.05, 0.95]).to(shares)))
    noise = (clamped - prior).square().mean() - (prior * (1 - prior)).mean()
    values = shares.shape[1]  # The shares of a record add up to one, so their noise has one dimension less.
    return shares / (noise * values / (values - 1)).clamp_min(1e-6) + prior.log()


def _centred(shares: Tensor) -> Tensor:
    """Subtract the mean of each row, so that each row adds up to zero.

    A row holds one number for each possible value of a record. If the result is added to shares, the shares of a record
    keep their sum.
    """
    return shares - shares.mean(1, keepdim=True)


@dataclass(frozen=True)
class AttributeByEquations:
    """The attack :func:`by_equations` as a class, so that the registry can build it by name.

    Args:
        rounds: The number of rounds to use, counted from the first round.
        steps: The number of conjugate-gradient steps.
        prior: The shares of the values in the population, if the attacker knows these shares.
    """

    rounds: int = 3
    steps: int = 30
    prior: Sequence[float] | None = None

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds)
        whole_number("steps", self.steps)

    def __call__(
        self,
        rounds: Sequence[Observation],
        records: PublicRecords,
        *,
        model: LocalModel | None = None,
        report: Report = silent,
    ) -> Attributes:
        """Infer the attribute from the equations of the client's gradients."""
        return by_equations(rounds, records, rounds=self.rounds, steps=self.steps, prior=self.prior, report=report)


def _scale_known(observation: Observation) -> Fit:
    training = observation.training
    unknown = [name for name in ("lr", "epochs", "batch_size", "samples") if getattr(training, name) is None]
    if observation.kind == "weights" and unknown:
        return Fit(False, f"needs the scale of the client's gradient, and these are unknown: {', '.join(unknown)}")
    if not mixes_linearly(observation):
        return Fit(False, "solves the equations of a gradient, and the steps of Adam are no gradients")
    if steps_in(observation) != 1:
        return Fit(True, "solves the gradient's equations, for which several local steps are noise")
    return Fit(True, "solves the equations of one exact gradient")


SPECS = (
    AttackSpec(
        name="attribute_by_equations",
        factory=AttributeByEquations,
        summary="Least squares on the client's gradient, which is linear in the value of each record (beyond LMRA).",
        recovers="attribute",
        reads="rounds",
        fits=for_tables(_scale_known),
        cost=Cost.SECONDS,
        rank=2,
    ),
)
