r"""Differentially private SGD (Abadi et al. 2016), the defence of LMRA's appendix D.4.

With :math:`g_i` the gradient of sample :math:`i` of a batch of :math:`m`, :math:`C` the clipping norm and
:math:`\sigma` the noise multiplier, the client descends along

.. math:: \frac1m \Big( \sum_{i=1}^m g_i \min(1, C / \lVert g_i \rVert) + n \Big), \qquad n \sim N(0, \sigma^2 C^2 I).

:func:`dp_sgd` takes the privacy budget :math:`(\epsilon, \delta)` that all of a client's steps together may cost, and
asks Opacus's accountant for the :math:`\sigma` that keeps it. The accountant takes batches to be drawn at random with
``sample_rate``; clients here go through their data in a random order, as is usual, so the budget is as approximate as
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.defences.checks import strength
from leakscope.errors import InvalidInput, MissingExtra
from leakscope.federated.defence import SampleGradientDefence
from leakscope.params import Params, elementwise


@dataclass(frozen=True)
class DPSGD(SampleGradientDefence):
    """Each sample's gradient clipped to the norm ``clip``, and Gaussian noise of ``noise_multiplier`` times that."""

    noise_multiplier: float
    clip: float = 1.0

    def __post_init__(self) -> None:
        strength("the noise multiplier of DP-SGD", self.noise_multiplier)
        strength("the clipping norm of DP-SGD", self.clip)
        if self.clip == 0:
            raise InvalidInput("the clipping norm of DP-SGD must be above 0: nothing would be left of a gradient")

    def on_sample_gradients(self, gradients: Params, draw: torch.Generator) -> Params:
        """The clipped gradients with one noise in common: their mean has that of the sum over the batch's size."""
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in gradients.values()]).norm(dim=0)
        factors: Tensor = (self.clip / norms.clamp_min(1e-12)).clamp_max(1)

        def private(value: Tensor) -> Tensor:
            noise = torch.randn(value.shape[1:], generator=draw).to(value)
            clipped: Tensor = value * factors.reshape(-1, *[1] * (value.ndim - 1)).to(value)
            return clipped + self.noise_multiplier * self.clip / len(value) * noise

        return elementwise(private, gradients)


def dp_sgd(*, epsilon: float, delta: float, sample_rate: float, steps: int, clip: float = 1.0) -> DPSGD:
    """DP-SGD whose ``steps`` local steps in all cost a client at most (``epsilon``, ``delta``), by Opacus's accountant.

    ``sample_rate`` is the share of the client's samples in a batch. LMRA takes (10, 1e-5).
    """
    if not 0 < sample_rate <= 1:
        raise InvalidInput(f"sample_rate is the share of a client's samples in a batch, in (0, 1], not {sample_rate!r}")
    if epsilon <= 0 or not 0 < delta < 1 or steps < 1:
        raise InvalidInput(
            f"a budget needs an epsilon above 0, a delta in (0, 1) and steps, not {epsilon!r}, {delta!r} and {steps!r}"
        )
    try:
        from opacus.accountants.utils import get_noise_multiplier
    except ImportError as problem:
        raise MissingExtra("DP-SGD with a privacy budget", "opacus", "privacy") from problem
    noise = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, steps=steps, accountant="rdp"
    )
    return DPSGD(float(noise), clip)
