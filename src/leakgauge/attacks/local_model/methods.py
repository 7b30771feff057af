r"""The client's own model from the rounds it took part in (LMRA, Driouich et al., section 3).

A client leaves its own optimum :math:`\theta^*` alone. With :math:`u(\theta)` the update that it adds to a model
:math:`\theta`, every method here looks for the model where :math:`u` vanishes, from pairs :math:`(\theta_t, u_t)`:

====================  =================================================================  ============================
:class:`Exact`        :math:`u = W(\theta^* - \theta)`, no noise                         proposition 1, d + 1 rounds
:class:`LeastSquares` the same with noise: :math:`W` and :math:`W\theta^*` by regression  proposition 3, many rounds
:class:`Secant`       :math:`u` linear on the span of the rounds, ridge; any model       beyond the paper; seconds
``Learned``           :math:`u` a network (:mod:`leakgauge.attacks.local_model.learned`)           algorithm 2, equations 7, 8
``Distilled``         :math:`u` the training on a few made-up samples                    algorithm 2, our map
                      (:mod:`leakgauge.attacks.local_model.distilled`)
:class:`GlobalModel`  the server's model itself                                          proxy, table 1
:class:`LastReturned` the model that the client returned last                            proxy, table 1
====================  =================================================================  ============================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.local_model.messages import Found, LocalModelAttack, Messages, relative
from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.core.progress import Report

#: Methods that form a d x d matrix refuse models with more parameters than this.
LARGEST_LINEAR = 5_000


@dataclass(frozen=True)
class GlobalModel(LocalModelAttack):
    """The server's latest model as a proxy of the local one (LMRA, section 4, baselines)."""

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """The last model that was sent."""
        return Found(messages.sent[-1], f"the model that the server sent in round {messages.last.round}")


@dataclass(frozen=True)
class LastReturned(LocalModelAttack):
    """The model that the client returned last, as a proxy of its local one (LMRA, section 4, baselines)."""

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """The last model that came back."""
        return Found(
            messages.sent[-1] + steps_of(messages)[-1],
            f"the model that the client returned in round {messages.last.round}",
        )


@dataclass(frozen=True)
class Exact(LocalModelAttack):
    r"""Proposition 1: the optimum of least squares from d + 1 rounds of full-batch training, by linear solves.

    By equation 15, :math:`u_t = W(\theta^* - \theta_t)` with the same invertible :math:`W` in every round, whatever
    the learning rate and the number of local steps. So with :math:`\bar\theta, \bar u` the means over rounds, weights
    :math:`a` with :math:`\bar u + \sum_t a_t (u_t - \bar u) = 0` give :math:`\theta^* = \bar\theta + \sum_t a_t
    (\theta_t - \bar\theta)`: one system in the rounds, of :math:`O(d^3)`, in place of the proof's d systems.

    With too few rounds, or rounds whose models lie in a smaller space, the answer is the point nearest to
    :math:`\bar\theta` whose predicted update is smallest; what is left of that update, over the smallest rate at which
    the client was seen to correct a model, is its ``uncertainty`` (the unseen directions may be slower still).
    Singular values below ``tolerance`` times the largest count as zero.
    """

    tolerance: float = 1e-13

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """Solve for the model that the client leaves alone."""
        sent, updates = messages.sent.double(), messages.updates.double()
        size, rounds = sent.shape[1], len(messages)
        moved, changed = sent - sent.mean(0), updates - updates.mean(0)
        left, values, right = torch.linalg.svd(changed, full_matrices=False)
        kept = (
            values > self.tolerance * values[0] if float(values[0]) > 0 else torch.zeros_like(values, dtype=torch.bool)
        )
        rank = int(kept.sum())
        mixture = -left[:, kept] @ ((right[kept] @ updates.mean(0)) / values[kept])
        vector = sent.mean(0) + mixture @ moved
        rest = float((updates.mean(0) + mixture @ changed).norm())
        rates = values[kept] / (left[:, kept].T @ moved).norm(dim=1) if rank else values.new_ones(1)
        uncertainty = relative(rest, float(rates.min()))
        if rank == size:
            outcome = f"the update map is known in all {size} directions: the optimum is determined"
        elif rounds <= size:
            outcome = (
                f"too few rounds: {rounds} show the update in {rank} of {size} directions; "
                f"the answer is the nearest to the mean model, watch {size + 1 - rounds} rounds more"
            )
        else:
            outcome = (
                f"rank-deficient: {rounds} rounds show the update in {rank} of {size} directions only; the answer is "
                "the nearest to the mean model, watch rounds with other participants"
            )
        return Found(vector, outcome, uncertainty, {"rank": float(rank), "update_left": rest})


@dataclass(frozen=True)
class LeastSquares(LocalModelAttack):
    r"""Proposition 3: the optimum of least squares under stochastic training, by regression of updates on models.

    :math:`(\hat W, \hat v)` minimise :math:`\sum_t \lVert u_t + W\theta_t - v \rVert^2` (equation 31), and
    :math:`\hat\theta = \hat W^{-1}\hat v`. Its ``uncertainty`` is the bound of equation 26 at confidence
    ``1 - failure``,

    .. math:: \frac{2 d}{\lambda_{\min}(\hat W)} (\lVert\hat\theta\rVert + 1)\,
              \hat s \sqrt{\frac{d + 1 + \ln(2/\delta)}{n\,\underline\lambda}},

    with what the attacker can measure in place of what it cannot know: :math:`\hat s`, the largest deviation of the
    residuals over coordinates, for :math:`\eta\sigma\sqrt{E\lceil m/b\rceil}` (equation 30), and the smallest
    eigenvalue of :math:`\hat W`'s symmetric part for that of :math:`W`. All rounds serve every row, which only
    tightens what the proof shows for disjoint ones.
    """

    failure: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.failure < 1:
            raise InvalidInput(f"failure is a probability between 0 and 1, not {self.failure!r}")

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """Regress, then solve."""
        sent, updates = messages.sent.double(), messages.updates.double()
        (rounds, size) = sent.shape
        if size > LARGEST_LINEAR:
            raise InvalidInput(
                f"regression of the whole update map takes a {size} x {size} matrix; use Secant() for such a model"
            )
        if rounds <= size + 1:
            raise InvalidInput(
                f"{rounds} rounds are too few for {size} parameters with noise: give at least {size + 2}, or use "
                "Exact() for full-batch clients, Secant() for any"
            )
        design = torch.cat((sent, -sent.new_ones(rounds, 1)), dim=1)
        fitted = torch.linalg.lstsq(design, -updates, driver="gelsd").solution
        rate, constant = fitted[:-1].T, fitted[-1]
        vector = torch.linalg.lstsq(rate, constant, driver="gelsd").solution
        noise = (design @ fitted + updates).square().sum(0).div(rounds - size - 1).sqrt().max()
        spread = float(torch.linalg.eigvalsh(design.T @ design / rounds)[0])
        slowest = float(torch.linalg.eigvalsh((rate + rate.T) / 2)[0])
        outcome = f"regression over {rounds} rounds"
        if slowest <= 0:
            bound, outcome = (
                math.inf,
                f"{outcome}; the bound is infinite: the fitted map is not definite, watch more rounds",
            )
        else:
            factor = math.sqrt((size + 1 + math.log(2 / self.failure)) / (rounds * max(spread, 1e-300)))
            bound = 2 * size / slowest * (float(vector.norm()) + 1) * float(noise) * factor
            outcome = (
                f"{outcome}; within {bound:.3g} of the optimum with probability {1 - self.failure:g} (equation 26)"
            )
        return Found(vector, outcome, bound, {"noise": float(noise), "smallest_rate": slowest, "spread": spread})


@dataclass(frozen=True)
class Secant(LocalModelAttack):
    r"""The zero of a linear update map on the span of the observed models (Anderson mixing, multi-secant); any model.

    Seen from the last round, :math:`u(\theta_n + S^T a) \approx u_n + Y^T (K + \lambda I)^{-1} K a` with rows
    :math:`s_t = \theta_t - \theta_n`, :math:`y_t = u_t - u_n` and :math:`K = S S^T`. The ridge :math:`\lambda` is the
    one that best predicts the updates of held-out rounds (``folds`` of them). An update that is shorter than that
    prediction's error cannot be told from none, so no step is tried beyond where the predicted update is that short
    (Morozov's discrepancy principle). But a client's updates vanish wherever its loss is flat, and near the first model
    it often is. So of these steps the one is taken along which the updates go furthest with it, by the linear map, and
    none if all go against it. The update that is left is then added, as the client would. Everything is done on
    matrices of rounds x rounds.
    """

    folds: int = 5
    ridges: tuple[float, ...] = tuple(10.0**power for power in range(-8, 4))

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise InvalidInput(f"folds must be at least 2, not {self.folds}")
        if not self.ridges or min(self.ridges) < 0:
            raise InvalidInput(f"ridges must be numbers of at least 0, not {self.ridges}")

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """Fit, choose the ridge, step."""
        if len(messages) < 3:
            raise InvalidInput(f"a secant needs at least 3 rounds, not {len(messages)}")
        sent, updates = messages.sent.double(), steps_of(messages).double()
        moved, changed = sent[:-1] - sent[-1], updates[:-1] - updates[-1]
        gram = moved @ moved.T
        scale = float(gram.diagonal().mean()) or 1.0
        errors = [held_out_error(sent, updates, ridge * scale, self.folds) for ridge in self.ridges]
        best = min(range(len(errors)), key=errors.__getitem__)
        ridge, error = self.ridges[best] * scale, errors[best]
        values, basis = torch.linalg.eigh(gram)
        shrink = basis @ torch.diag(values.clamp_min(0) / (values.clamp_min(0) + ridge + 1e-300)) @ basis.T
        mapped = shrink @ changed
        steps = shorter_steps(mapped @ mapped.T, mapped @ updates[-1], gram, float(updates[-1].norm()), error)
        along, bend = moved @ updates[-1], moved @ mapped.T
        mixture = max(steps, key=lambda one: float(one @ along + one @ bend @ one / 2))
        left = updates[-1] + mixture @ mapped
        vector = sent[-1] + mixture @ moved + left
        share = relative(error, float(updates.square().sum(1).mean().sqrt()))
        outcome = (
            f"the update of a held-out round is predicted with an error of {share:.0%} (ridge {self.ridges[best]:g}); "
            f"the update shrinks from {float(updates[-1].norm()):.3g} to {float(left.norm()):.3g}"
        )
        return Found(vector, outcome, None, {"held_out_error": share, "step": float((mixture @ moved).norm())})


def held_out_error(sent: Tensor, updates: Tensor, ridge: float, folds: int) -> float:
    """The root mean squared error with which a linear ridge map predicts the updates of held-out rounds."""
    rounds = len(sent)
    centre, middle = sent.mean(0), updates.mean(0)
    gram = (sent - centre) @ (sent - centre).T
    answers = (updates - middle) @ (updates - middle).T
    total, count = 0.0, 0
    for fold in range(min(folds, rounds)):
        out = torch.arange(rounds) % min(folds, rounds) == fold
        inside = gram[~out][:, ~out]
        weights = torch.linalg.lstsq(inside + ridge * torch.eye(len(inside)).to(inside), gram[~out][:, out]).solution
        cross = (weights * answers[~out][:, out]).sum()
        square = (weights * (answers[~out][:, ~out] @ weights)).sum()
        total += float(answers[out][:, out].diagonal().sum() - 2 * cross + square)
        count += int(out.sum())
    return math.sqrt(max(total, 0.0) / count)


def shorter_steps(mapped: Tensor, right: Tensor, gram: Tensor, length: float, wanted: float) -> list[Tensor]:
    """No step, and longer and longer ones until the predicted update is no longer than ``wanted``; mixtures of rounds.

    Each minimises ``|u + M a|^2 + w |S a|^2`` for a smaller ``w``; ``mapped = M M^T``, ``right = M u``,
    ``gram = S S^T`` and ``length = |u|``.
    """
    steps = [torch.zeros_like(right)]
    scale = float(mapped.diagonal().mean()) / max(float(gram.diagonal().mean()), 1e-300)
    left = length**2
    for power in range(6, -13, -1):
        if left <= wanted**2:
            break
        mixture = -torch.linalg.lstsq(mapped + scale * 10.0**power * gram, right, driver="gelsd").solution
        left = length**2 + 2 * float(mixture @ right) + float(mixture @ mapped @ mixture)
        steps.append(mixture)
    return steps


def steps_of(messages: Messages) -> Tensor:
    """The updates on the scale of the weights: a gradient is a step only with the server's learning rate."""
    if messages.last.kind == "weights":
        return messages.updates
    if messages.last.training.lr is None:
        raise MissingKnowledge(
            "these rounds are gradients, and the step that follows them is unknown; supply the learning rate with "
            "observation.knowing(lr=...)"
        )
    return messages.updates * float(messages.last.training.lr)
