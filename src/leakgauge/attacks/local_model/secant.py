"""The attack that predicts a client's updates with a linear map. It takes seconds on any model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.local_model.base import Estimate, LocalModelAttack, needs_step_length, relative
from leakgauge.attacks.local_model.messages import Messages, weight_updates_of
from leakgauge.attacks.spec import AttackSpec, Cost
from leakgauge.core.errors import InvalidInput
from leakgauge.core.progress import Report


@dataclass(frozen=True)
class Secant(LocalModelAttack):
    r"""The attack that fits a linear map from models to updates and solves for an update of zero (beyond the paper).

    The method is Anderson mixing, also called the multi-secant method. It works for any model. Let :math:`\theta_t` be
    the model and :math:`u_t` the update of round :math:`t`, and let n be the last round. The map is

    .. math:: u(\theta_n + S^T a) \approx u_n + Y^T (K + \lambda I)^{-1} K a, \qquad K = S S^T.

    The rows of :math:`S` are :math:`\theta_t - \theta_n`, and the rows of :math:`Y` are :math:`u_t - u_n`. All linear
    systems have the size rounds x rounds.

    1. The ridge :math:`\lambda` is the candidate with which the map best predicts the updates of held-out rounds.
    2. An update that is shorter than the error of this prediction cannot be distinguished from zero. So no candidate
       step goes beyond the point at which the predicted update is as short as this error (Morozov's discrepancy
       principle).
    3. A client's updates also vanish wherever its loss is flat, which is often the case near the first model. So the
       attack integrates the inner product of the step and the updates of the linear map along each candidate step. It
       takes the step with the largest integral. If the integrals of all steps are negative, no step is taken.
    4. The predicted update at the end of the step may not be zero. It is added, as the client would add it.

    Args:
        folds: The number of folds of the cross-validation over rounds.
        ridges: The candidates of the ridge, in units of the mean squared distance of the models from the last model.
    """

    folds: int = 5
    ridges: tuple[float, ...] = tuple(10.0**power for power in range(-8, 4))

    def __post_init__(self) -> None:
        object.__setattr__(self, "ridges", tuple(self.ridges))
        if self.folds < 2:
            raise InvalidInput(f"folds must be at least 2, not {self.folds}")
        if not self.ridges or min(self.ridges) < 0:
            raise InvalidInput(f"ridges must be numbers of at least 0, not {self.ridges}")

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Fit the linear map with the best ridge, and step towards the model whose predicted update is zero."""
        if len(messages) < 3:
            raise InvalidInput(f"the secant method needs at least 3 rounds, not {len(messages)}; record more rounds")
        sent, updates = messages.sent.double(), weight_updates_of(messages).double()
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
        mixture = max(steps, key=lambda step: float(step @ along + step @ bend @ step / 2))
        remainder = updates[-1] + mixture @ mapped
        vector = sent[-1] + mixture @ moved + remainder
        share = relative(error, float(updates.square().sum(1).mean().sqrt()))
        outcome = (
            f"the update of a held-out round is predicted with an error of {share:.0%} (ridge {self.ridges[best]:g}). "
            f"The length of the update falls from {float(updates[-1].norm()):.3g} to {float(remainder.norm()):.3g}"
        )
        return Estimate(vector, outcome, None, {"held_out_error": share, "step": float((mixture @ moved).norm())})


def held_out_error(sent: Tensor, updates: Tensor, ridge: float, folds: int) -> float:
    """Return the root mean squared error with which a linear ridge map predicts the updates of held-out rounds.

    Args:
        sent: The models, (rounds, parameters).
        updates: The updates, (rounds, parameters).
        ridge: The penalty of the ridge regression.
        folds: The number of folds of the cross-validation.
    """
    rounds = len(sent)
    gram = (sent - sent.mean(0)) @ (sent - sent.mean(0)).T
    products = (updates - updates.mean(0)) @ (updates - updates.mean(0)).T
    total, count = 0.0, 0
    for fold in range(min(folds, rounds)):
        out = torch.arange(rounds) % min(folds, rounds) == fold
        inside = gram[~out][:, ~out]
        weights = torch.linalg.lstsq(inside + ridge * torch.eye(len(inside)).to(inside), gram[~out][:, out]).solution
        cross = (weights * products[~out][:, out]).sum()
        square = (weights * (products[~out][:, ~out] @ weights)).sum()
        total += float(products[out][:, out].diagonal().sum() - 2 * cross + square)
        count += int(out.sum())
    return math.sqrt(max(total, 0.0) / count)


def shorter_steps(mapped: Tensor, right: Tensor, gram: Tensor, length: float, wanted: float) -> list[Tensor]:
    r"""Return candidate steps of growing length, each as one weight per round. The first candidate is no step.

    Each step :math:`a` minimises :math:`|u + M^T a|^2 + w |S^T a|^2` for a smaller :math:`w` than the step before.
    Here, :math:`u` is the last update, and :math:`S^T a` is the step in the space of weights. :math:`M^T a` is the
    change of the update that the linear map predicts for this step. The list ends when the length of the predicted
    update falls to ``wanted`` or below.

    Args:
        mapped: :math:`M M^T`, the inner products of the rows of :math:`M`.
        right: :math:`M u`, the inner products of the rows of :math:`M` with the last update.
        gram: :math:`S S^T`, the inner products of the differences between the models and the last model.
        length: :math:`|u|`, the length of the last update.
        wanted: The length at or below which a predicted update counts as zero.
    """
    steps = [torch.zeros_like(right)]
    scale = float(mapped.diagonal().mean()) / max(float(gram.diagonal().mean()), 1e-300)
    remainder = length**2
    for power in range(6, -13, -1):
        if remainder <= wanted**2:
            break
        mixture = -torch.linalg.lstsq(mapped + scale * 10.0**power * gram, right, driver="gelsd").solution
        remainder = length**2 + 2 * float(mixture @ right) + float(mixture @ mapped @ mixture)
        steps.append(mixture)
    return steps


SPECS = (
    AttackSpec(
        name="secant",
        factory=Secant,
        summary="A step to the zero of a linear update map on the span of the rounds, for any model (beyond LMRA).",
        recovers="model",
        reads="rounds",
        fits=needs_step_length("works with any model from 3 rounds on, in seconds"),
        cost=Cost.SECONDS,
        rank=1,
    ),
)
