r"""Ridge regression from messages to private values, in the dual form, with a closed form of cross-validation.

With :math:`K` the similarities of the rehearsed messages after centring, :math:`Y` the private values and
:math:`\lambda` the strength of the penalty, the fitted values are :math:`SY` with

.. math:: S = \tfrac1n \mathbf 1 \mathbf 1^\top + K (K + \lambda I)^{-1}.

The values that a regression *without* the messages of a fold :math:`G` predicts for this fold have the errors
:math:`(I - S_{GG})^{-1} (Y - SY)_G`. No regression is fitted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.learned.features import Kernel
from leakgauge.core.seeding import generator

#: The strengths of the penalty that are compared, as multiples of the mean variance of the similarities.
STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-12, 7))
#: The number of random directions in which errors are measured during cross-validation, if there are more values.
DIRECTIONS = 160
#: All similarities are compared with this number of rehearsed clients, and the best ones with all of them.
SCREENED, FINALISTS = 200, 2
#: The number of strengths below and above the best one of this comparison that are compared again.
NEAR = 3
#: The number of standard errors by which a regression must beat the guess.
CLEARLY = 3.0


@dataclass(frozen=True, eq=False)
class Fit:
    """A regression that cross-validation chose.

    Args:
        kernel: The name of the similarity.
        strength: The strength of the penalty.
        predicted: The predicted difference of the observed client's values from the guess.
        error: The mean squared error for held-out messages, relative to that of the guess.
        gain: The number of standard errors by which the regression beats the guess for held-out messages.
        reach: The root of the mean squared predicted difference from the guess, relative to that of rehearsed messages.
        held_out: The predicted differences of each rehearsed client from the guess, without the messages of its fold,
            or ``None`` if there are too many values.
    """

    kernel: str
    strength: float
    predicted: Tensor
    error: float
    gain: float
    reach: float
    held_out: Tensor | None = None

    @property
    def explains(self) -> bool:
        """Whether messages show more than the guess."""
        return self.gain > CLEARLY and self.error < 1


def fit(kernels: Sequence[Kernel], values: Tensor, folds: Tensor, seed: int) -> Fit:
    """Choose a similarity and a strength by cross-validation, and predict the values of the observed client.

    Args:
        kernels: The similarities that are compared.
        values: The private values of each rehearsed client, minus the guess, (N, values).
        folds: The fold of each rehearsed client.
        seed: The seed of the random directions.
    """
    values = values.double()
    measured = values
    if values.shape[1] > DIRECTIONS:
        draw = torch.randn(values.shape[1], DIRECTIONS, generator=generator(seed, "directions"), dtype=torch.double)
        measured = values @ draw.to(values.device)
    before = measured.square().sum(1)
    best: tuple[float, Kernel, float, Tensor, _System] | None = None
    for kernel, strengths in promising(kernels, measured, folds):
        system = _System.of(kernel.among)
        for strength in strengths:
            rest = system.held_out(measured, folds, strength)
            total = float(rest.square().sum())
            if best is None or total < best[0]:
                best = total, kernel, strength, rest, system
    assert best is not None
    _, kernel, strength, rest, system = best
    errors = rest.square().sum(1)
    predicted, fitted = system.predict(kernel, values, strength)
    gained = before - errors
    deviation = float(gained.std()) / len(gained) ** 0.5
    usual = fitted.square().mean().clamp(min=torch.finfo(torch.double).tiny)
    return Fit(
        kernel.name,
        strength,
        predicted,
        float(errors.sum() / before.sum().clamp(min=1e-300)),
        float(gained.mean()) / deviation if deviation > 0 else 0.0,
        float((predicted.square().mean() / usual).sqrt()),
        measured - rest if measured is values else None,
    )


def promising(kernels: Sequence[Kernel], values: Tensor, folds: Tensor) -> list[tuple[Kernel, tuple[float, ...]]]:
    """Return the similarities with the smallest errors of cross-validation for some of the rehearsed clients.

    Each similarity comes with the strengths of the penalty that are near to the best one.

    Args:
        kernels: The similarities that are compared.
        values: The private values of each rehearsed client, minus the guess.
        folds: The fold of each rehearsed client.
    """
    best = []
    for kernel in kernels:
        system = _System.of(kernel.among[:SCREENED, :SCREENED])
        tried = [system.held_out(values[:SCREENED], folds[:SCREENED], strength) for strength in STRENGTHS[::NEAR]]
        errors = [float(rest.square().sum()) for rest in tried]
        best.append((min(errors), errors.index(min(errors)) * NEAR, kernel))
    best.sort(key=lambda item: item[0])
    return [(kernel, STRENGTHS[max(0, at - NEAR) : at + NEAR + 1]) for _, at, kernel in best[:FINALISTS]]


@dataclass(frozen=True, eq=False)
class _System:
    """The eigenvalues and the eigenvectors of centred similarities."""

    eigenvalues: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, among: Tensor) -> _System:
        centred = among - among.mean(0) - among.mean(1, keepdim=True) + among.mean()
        eigenvalues, vectors = torch.linalg.eigh(centred)
        return cls(eigenvalues.clamp(min=0), vectors)

    def _kept(self, strength: float) -> Tensor:
        """Return the share of each eigenvector that a regression keeps."""
        penalty = strength * self.eigenvalues.mean().clamp(min=torch.finfo(torch.double).tiny)
        return self.eigenvalues / (self.eigenvalues + penalty)

    def held_out(self, values: Tensor, folds: Tensor, strength: float) -> Tensor:
        """Return the errors of regressions without the fold of each message."""
        left = 1 - self._kept(strength)
        residuals = self.vectors @ (left[:, None] * (self.vectors.T @ values)) - values.mean(0)
        errors = torch.empty_like(residuals)
        for fold in folds.unique():
            inside = folds == fold
            rows = self.vectors[inside]
            own = (rows * left) @ rows.T - 1 / len(folds)
            errors[inside] = torch.linalg.solve(own, residuals[inside])
        return errors

    def predict(self, kernel: Kernel, values: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Return the predicted values of the observed message, and the fitted values of the rehearsed messages."""
        mean = values.mean(0)
        rotated = self.vectors.T @ (values - mean)
        penalty = strength * self.eigenvalues.mean().clamp(min=torch.finfo(torch.double).tiny)
        weights = self.vectors @ (rotated / (self.eigenvalues + penalty)[:, None])
        row = kernel.observed - kernel.among.mean(0) - kernel.observed.mean() + kernel.among.mean()
        fitted = mean + self.vectors @ (self._kept(strength)[:, None] * rotated)
        return mean + row @ weights, fitted
