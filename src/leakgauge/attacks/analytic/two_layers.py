"""Two consecutive dense layers with an elementwise activation between them.

The layers are found by what they compute and not by their names.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DUMMIES, DenseChain, DoesNotFit, Reached, stop_at_input
from leakgauge.attacks.analytic.mixture import Branches
from leakgauge.core.observation import Observation

#: The standard deviations of the random outputs at which the slopes of an activation are looked at.
PROBED = (0.1, 1.0, 3.0)


class TwoLayers(DenseChain):
    """A copy of a model whose first dense layer is followed by an elementwise activation and a second dense layer.

    Args:
        observation: The message of the client. If the model has no such two layers, :class:`.DoesNotFit` is raised.
        on_samples: Whether the first layer gets the samples themselves. Otherwise it gets features.
        needs_bias: Whether layers without a bias are refused.
    """

    def __init__(self, observation: Observation, on_samples: bool = True, needs_bias: bool = True) -> None:
        super().__init__(observation, on_samples, needs_bias)
        self.classes = observation.data.classes
        position = [path for path, _ in self.calls].index(self.first) + 1
        if position == len(self.calls):
            raise DoesNotFit("the model has a single dense layer, and two consecutive ones are needed")
        self.second = self.calls[position][0]
        self._check_parameters(self.second, observation)
        self._check_elementwise()
        self.check_rows()
        self._check_not_linear()

    def last_entry(self, right: Tensor) -> Tensor | None:
        """Return the coefficients that compute the last entry of an augmented input from its coordinates in a basis.

        An augmented input is an input of the first layer with an appended 1 for the bias. The result is ``None`` if the
        layer has no bias.

        Args:
            right: The basis, with one vector in each column.
        """
        return right[-1] if self.has_bias(self.first) else None

    def activation(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activations, which are the inputs of the second dense layer, and the slopes of the activation.

        Args:
            first: The outputs of the first dense layer, one row for each sample.
        """
        first = first.detach().requires_grad_()
        with torch.enable_grad():
            inputs = self._between(first)
            (slope,) = torch.autograd.grad(inputs.sum(), first)
        return inputs.detach(), slope

    def curvature(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slopes of the activation, and the derivatives of these slopes.

        Args:
            first: The outputs of the first dense layer, one row for each sample.
        """
        first = first.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self._between(first).sum(), first, create_graph=True)
            if not slope.requires_grad:
                return slope, torch.zeros_like(slope)
            (curve,) = torch.autograd.grad(slope.sum(), first, allow_unused=True)
        return slope.detach(), torch.zeros_like(slope) if curve is None else curve

    def branches(self) -> Branches | None:
        """Return the two slopes of the activation, or ``None`` if it has more slopes or only one."""
        return Branches.of(self._slopes())

    def guessed_gradients(self, first: Tensor, random: torch.Generator) -> Tensor:
        """Return gradients of the loss with respect to the outputs of the second layer, for random targets.

        Args:
            first: The outputs of the first dense layer, one row for each sample.
            random: The generator of the targets.
        """
        if self.classes is None:
            with torch.no_grad():
                targets = self.outputs(first).reshape(-1) - 1
        else:
            targets = torch.randint(self.classes, (len(first),), generator=random).to(first.device)
        return self.gradients(first, targets, self.second)[1]

    def check_only_path(self) -> None:
        """Check that the first layer's outputs reach the loss through the second layer only."""
        first = self._random(DUMMIES, self.layer(self.first).out_features)
        of_first, of_second = self.gradients(first, self._dummy_targets(), self.second)
        expected = self.activation(first)[1] * (of_second @ self.layer(self.second).weight)
        if not torch.allclose(expected, of_first, rtol=1e-6, atol=1e-9 * float(of_first.abs().max())):
            raise DoesNotFit("outputs of the first dense layer bypass the next dense layer, as in residual networks")

    def check_one_output(self) -> None:
        """Check that the model of a regression has only one output. The attack can then compute the target."""
        with torch.no_grad():
            outputs = self.outputs(self._random(DUMMIES, self.layer(self.first).out_features))
        if self.classes is None and outputs.numel() != DUMMIES:
            raise DoesNotFit("a regression can only be solved if the model has one output")

    def check_scale(self) -> None:
        """Check that the attack finds a sample itself, and not only the sample times an unknown factor."""
        if not self.has_bias(self.first) and (self.classes or 0) < 3:
            raise DoesNotFit(
                f"the dense layer {self.first!r} has no bias, so its gradient gives samples up to a factor, which only "
                "the outputs for three or more classes determine"
            )

    def _dummy_targets(self) -> Tensor:
        if self.classes is None:
            return torch.zeros(DUMMIES, dtype=torch.double, device=self.device)
        return torch.zeros(DUMMIES, dtype=torch.long, device=self.device)

    def _check_not_linear(self) -> None:
        slopes = self._slopes()
        if torch.allclose(slopes, slopes[:1].expand_as(slopes), rtol=1e-9, atol=1e-12):
            raise DoesNotFit("the layers from the first dense layer to the next are linear")

    def _slopes(self) -> Tensor:
        """Return the slopes of the activation at many random outputs of the first layer."""
        drawn = self._random(64, self.layer(self.first).out_features)
        return torch.cat([self.activation(scale * drawn)[1] for scale in PROBED])

    def _between(self, first: Tensor) -> Tensor:
        handle = self.layer(self.second).register_forward_pre_hook(stop_at_input)
        try:
            self.outputs(first)
        except Reached as reached:
            return reached.inputs
        finally:
            handle.remove()
        raise AssertionError("the forward pass does not reach the second dense layer")

    def _check_elementwise(self) -> None:
        width = self.layer(self.first).out_features
        one, other = self._random(2 * DUMMIES, width).split(DUMMIES)
        mask = self._random(DUMMIES, width, seed=1) > 0
        with torch.no_grad():
            inputs = [self._between(first) for first in (one, other, torch.where(mask, one, other))]
        elementwise = all(tuple(value.shape) == (DUMMIES, width) for value in inputs) and torch.allclose(
            torch.where(mask, inputs[0], inputs[1]), inputs[2], rtol=1e-9, atol=1e-12
        )
        if not elementwise:
            raise DoesNotFit("there is no elementwise activation between the first dense layer and the next")
