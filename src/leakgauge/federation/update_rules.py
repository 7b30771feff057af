r"""The update rules of torch's optimisers, as functions that can be differentiated.

With :math:`g_t` the gradient of step :math:`t = 1, 2, \dots`, learning rate :math:`\eta_t`, weight decay
:math:`\omega`, momentum :math:`\mu`, dampening :math:`\tau`, and Adam's decay rates :math:`\beta_1` and :math:`\beta_2`
and constant :math:`\varepsilon`, a step of each optimiser is

=========  =====================================================================================================
``sgd``    :math:`d_t = g_t + \omega\theta_t`, :math:`b_t = \mu b_{t-1} + (1 - \tau) d_t` (with :math:`b_1 = d_1`),
           :math:`\theta_{t+1} = \theta_t - \eta_t b_t`, or :math:`\theta_t - \eta_t (d_t + \mu b_t)` with Nesterov
``adam``   :math:`d_t = g_t + \omega\theta_t`, :math:`m_t = \beta_1 m_{t-1} + (1 - \beta_1) d_t`,
           :math:`v_t = \beta_2 v_{t-1} + (1 - \beta_2) d_t^2`,
           :math:`\theta_{t+1} = \theta_t - \eta_t\,\hat m_t / (\sqrt{\hat v_t} + \varepsilon)`
``adamw``  as Adam with :math:`d_t = g_t`, from :math:`(1 - \eta_t\omega)\,\theta_t` instead of :math:`\theta_t`
=========  =====================================================================================================

with :math:`\hat m_t = m_t / (1 - \beta_1^t)` and :math:`\hat v_t = v_t / (1 - \beta_2^t)`. Before the step, FedProx's
term with weight :math:`\mu_{\mathrm{prox}}` is added to the gradient (Li et al. 2020, equation 2). The sum is clipped
to the norm :math:`C`, as by ``clip_grad_norm_`` of torch. With the sent weights :math:`\theta^s`, the gradient of the
step is

.. math::
    g_t = c\,\tilde g_t, \qquad \tilde g_t = \nabla\ell_t + \mu_{\mathrm{prox}} (\theta_t - \theta^s), \qquad
    c = \min\big(1,\, C / (\lVert\tilde g_t\rVert + 10^{-6})\big).

**Derivatives of Adam.** If a weight's gradient was zero in every step, :math:`\hat v_t` is 0, where the root has no
derivative. The derivative of the root is then taken as 0. Elsewhere, a step of Adam is nearly the sign of the gradient.
The derivative of the step is almost 0, except near a gradient of 0, where it is :math:`1 / \varepsilon`. An attack
cannot optimise with such derivatives. With ``smooth`` above 0, the values stay exact, but the derivatives are those of
a step with a larger :math:`\varepsilon`. The increase is ``smooth`` times the root mean square of :math:`\hat m_t` in
the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from leakgauge.core.local_training import LocalTraining
from leakgauge.core.params import Params

#: The number that ``clip_grad_norm_`` adds to the norm.
_CLIP_EPS = 1e-6


class Moment(NamedTuple):
    """The index and the learning rate of one local step.

    Args:
        step: The index of the step, from 0.
        lr: The learning rate of the step.
    """

    step: int
    lr: float


@dataclass(frozen=True)
class UpdateRule:
    """The update rule of an optimiser with its settings. Unknown settings have the defaults of torch.

    Args:
        optimiser: The name of the optimiser.
        momentum: The momentum of SGD.
        nesterov: Whether SGD uses Nesterov's momentum.
        dampening: The dampening of SGD's momentum.
        betas: The decay rates of Adam.
        eps: The constant that Adam adds to its denominator.
        weight_decay: The weight decay.
        clip_norm: The norm to which gradients are clipped. 0 means no clipping.
        proximal: The weight of FedProx's term.
        smooth: The strength with which Adam's derivatives are smoothed. 0 means exact derivatives.
    """

    optimiser: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    proximal: float = 0.0
    smooth: float = 0.0

    @classmethod
    def of(cls, training: LocalTraining, *, smooth: float = 0.0) -> UpdateRule:
        """Return the update rule for the given training settings.

        Args:
            training: The settings of the client's training.
            smooth: The strength with which Adam's derivatives are smoothed. 0 means exact derivatives.
        """
        names = ("momentum", "dampening", "eps", "weight_decay", "clip_norm", "proximal")
        known = {name: float(getattr(training, name)) for name in names if getattr(training, name) is not None}
        betas = (0.9, 0.999) if training.betas is None else training.betas
        return cls(training.optimiser or "sgd", nesterov=bool(training.nesterov), betas=betas, smooth=smooth, **known)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the tensors that the optimiser keeps for each weight."""
        if self.optimiser != "sgd":
            return ("mean", "square")
        return ("velocity",) if self.momentum else ()

    def completed(self, gradient: Params, weights: Params, anchor: Mapping[str, Tensor]) -> Params:
        """Return a gradient with FedProx's term added and with its norm clipped.

        Args:
            gradient: The gradient of the loss.
            weights: The weights at which the gradient was computed.
            anchor: The weights that the server sent. Only FedProx's term needs them.
        """
        if self.proximal:
            gradient = {
                name: value.add(weights[name] - anchor[name], alpha=self.proximal) for name, value in gradient.items()
            }
        if not self.clip_norm:
            return gradient
        square = torch.stack([value.square().sum() for value in gradient.values()]).sum()
        factor = (self.clip_norm / (_root(square) + _CLIP_EPS)).clamp(max=1.0)
        return {name: value * factor for name, value in gradient.items()}

    def step(
        self, weight: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], moment: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return one weight tensor and the optimiser's tensors for it after one step.

        Args:
            weight: The values of the weight tensor before the step.
            gradient: The gradient of the weight, with FedProx's term and after clipping.
            slots: The tensors that the optimiser keeps for this weight.
            moment: The index and the learning rate of the step.
        """
        return (self._sgd if self.optimiser == "sgd" else self._adam)(weight, gradient, slots, moment)

    def _sgd(
        self, weight: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], moment: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # ``add`` with ``alpha`` reads the numbers one time less than a product and a sum would, in both passes.
        change, after = self._with_decay(weight, gradient), {}
        if self.momentum:
            fresh = change * (1 - self.dampening) if self.dampening and moment.step else change
            after["velocity"] = fresh.add(slots["velocity"], alpha=self.momentum)
            change = change.add(after["velocity"], alpha=self.momentum) if self.nesterov else after["velocity"]
        return weight.add(change, alpha=-moment.lr), after

    def _adam(
        self, weight: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], moment: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.optimiser == "adamw":
            weight = weight * (1 - moment.lr * self.weight_decay) if self.weight_decay else weight
        else:
            gradient = self._with_decay(weight, gradient)
        first, second = self.betas
        mean = torch.lerp(slots["mean"], gradient, 1 - first)
        square = second * slots["square"] + (1 - second) * gradient.square()
        corrected = mean / (1 - first ** (moment.step + 1))
        root = _root(square) / (1 - second ** (moment.step + 1)) ** 0.5
        return weight.add(self._normalised(corrected, root), alpha=-moment.lr), {"mean": mean, "square": square}

    def repeated(self, gradient: Params, weights: Params) -> Params:
        """Return the change of weights in one step divided by the learning rate, assuming that all gradients are equal.

        The result is exact for the first step. Momentum is left out, because it only changes how often a gradient is
        applied. If all gradients are equal, Adam's corrected moments are the gradient and its square.

        Args:
            gradient: The gradients of the trained weights, with FedProx's term and after clipping.
            weights: The current weights, for weight decay.
        """
        if self.optimiser == "sgd":
            return {name: self._with_decay(weights[name], value) for name, value in gradient.items()}
        if self.optimiser == "adam":
            gradient = {name: self._with_decay(weights[name], value) for name, value in gradient.items()}
        change = {name: self._normalised(value, value.abs()) for name, value in gradient.items()}
        if self.optimiser == "adamw":
            change = {name: self._with_decay(weights[name], value) for name, value in change.items()}
        return change

    def _with_decay(self, weight: Tensor, gradient: Tensor) -> Tensor:
        return gradient.add(weight, alpha=self.weight_decay) if self.weight_decay else gradient

    def _normalised(self, mean: Tensor, root: Tensor) -> Tensor:
        """Return ``mean / (root + eps)``. With ``smooth``, the derivative is computed with a larger ``eps``."""
        exact = mean / (root + self.eps)
        if not self.smooth:
            return exact
        size = self.smooth * mean.detach().square().mean().sqrt()
        smooth = mean / (root + (self.eps + size))
        return smooth + (exact - smooth).detach()


def _root(square: Tensor) -> Tensor:
    """Return the square root, with the derivative 0 where the root is 0."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
