r"""The dense layers of a model, found by their inputs rather than by their names.

A dense layer with a bias that gets the inputs :math:`x_i` has the gradient

.. math:: [\partial W \mid \partial b] = \frac{1}{N} \sum_{i=1}^{N} \delta_i\, [x_i, 1]^T ,

where :math:`\delta_i` is the gradient of sample :math:`i`'s loss with respect to the layer's output. The attacks of
this package need to know which layer gets the samples themselves, and which layer comes next. A forward pass of dummy
inputs shows both layers. This works for any module that a user has written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic.lookups import lookups_of
from leakgauge.attacks.analytic.model_copy import copy_of_model
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.one_gradient import gradient_of, why_no_gradient
from leakgauge.core.params import inside
from leakgauge.federation.losses import loss_of

#: The rows of dummy inputs. Two determine the map from samples to inputs, and the third one checks it.
DUMMIES = 3


class DoesNotFit(InvalidInput):
    """The error for a model or a client's message to which an exact attack does not apply. Its text is the reason."""


class Reached(Exception):
    """The exception that ends a forward pass at the input of a layer, and holds this input.

    Args:
        inputs: The inputs of this layer.
    """

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs


@dataclass(frozen=True, eq=False)
class Entrance:
    """The function that converts samples to inputs of the first dense layer. It reorders, scales and shifts the values.

    Args:
        order: For each input of the layer, the index of its value in the flattened sample.
        scale: The factor by which each value is multiplied.
        shift: The constant that is added to each product.
    """

    order: Tensor
    scale: Tensor
    shift: Tensor

    def undo(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Convert inputs of the first dense layer back to samples, and undo the normalisation.

        Args:
            inputs: The inputs of the first dense layer, one row for each sample.
            data: The description of the samples.
        """
        flat = torch.empty_like(inputs)
        flat[:, self.order] = (inputs - self.shift) / self.scale
        samples = data.denormalise(flat.reshape(-1, *data.shape))
        return samples.clamp(0, 1) if data.bounded else samples


class DenseChain:
    """A copy of the model that computes its outputs from given outputs of its first dense layer.

    The copy has the weights that the server sent, in double precision. With ``on_samples``, the first dense layer is
    the first whose inputs are the samples themselves. Otherwise it is the first whose inputs are one vector for each
    sample.

    Args:
        observation: The message of the client. If the model has no such layer, :class:`DoesNotFit` is raised.
        on_samples: Whether the inputs of the layer are the samples themselves. Otherwise they are features.
        needs_bias: Whether :class:`DoesNotFit` is also raised for a layer without a bias.
        least: The smallest number of dense layers of the model, if the inputs of the first one are features.
    """

    def __init__(
        self, observation: Observation, on_samples: bool = True, needs_bias: bool = True, least: int = 2
    ) -> None:
        self.data, self.device, self.on_samples = observation.data, observation.device, on_samples
        self.shape = observation.data.shape
        self.loss, self.loss_function = observation.training.loss, loss_of(observation.training)
        self.needs_bias = needs_bias
        _check_cheaply(observation, on_samples, least)
        self.model = copy_of_model(observation, torch.double)
        self.lookups = lookups_of(observation)
        self._given: Tensor | None = None
        self._seen: dict[str, Tensor] = {}
        self.calls = self._record_calls()
        self.first = self._first()
        self.entrance = self._entrance() if on_samples else None
        self._check_parameters(self.first, observation)
        self.layer(self.first).forward = self._return_given  # type: ignore[method-assign,assignment]

    def layer(self, path: str) -> nn.Linear:
        """Return the dense layer at a path in the model."""
        layer = self.model.get_submodule(path)
        assert isinstance(layer, nn.Linear)
        return layer

    def augmented_weight(self) -> Tensor:
        """Return the kernel and the bias of the first dense layer as one matrix. A bias is the last column."""
        layer = self.layer(self.first)
        return layer.weight if not self.has_bias(self.first) else torch.cat([layer.weight, layer.bias[:, None]], 1)

    def has_bias(self, path: str) -> bool:
        """Return whether the dense layer at a path in the model has a bias."""
        bias: Tensor | None = self.layer(path).bias
        return bias is not None

    def with_ones(self, inputs: Tensor, path: str) -> Tensor:
        """Append a column of ones to the inputs of a dense layer if the layer has a bias.

        Args:
            inputs: The inputs, one row for each sample.
            path: The path of the layer in the model.
        """
        return torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1) if self.has_bias(path) else inputs

    def outputs(self, first: Tensor) -> Tensor:
        """Return the outputs of the model for given outputs of the first dense layer.

        Args:
            first: The outputs of the first dense layer, one row for each sample.
        """
        self._given = first
        outputs: Tensor = self.model(torch.zeros(len(first), *self.shape, dtype=torch.double, device=self.device))
        return outputs

    def gradients(self, first: Tensor, targets: Tensor, second: str | None = None) -> list[Tensor]:
        r"""Return the gradient :math:`\delta` of each row's loss with respect to the outputs of the first dense layer.

        Args:
            first: The outputs of the first dense layer, one row for each sample.
            targets: The target of each row.
            second: The path of a second dense layer. If it is given, the gradients with respect to the outputs of this
                layer are returned too.
        """
        first = first.detach().requires_grad_()
        handles = [] if second is None else [self.layer(second).register_forward_hook(self._record_output)]
        try:
            with torch.enable_grad():
                loss = self.loss_function(self.outputs(first), targets) * len(first)
                seen = [first] if second is None else [first, self._seen["output"]]
                return list(torch.autograd.grad(loss, seen))
        finally:
            for handle in handles:
                handle.remove()
            self._seen.clear()

    def has_silent_neurons(self) -> bool:
        """Return whether some outputs of the first dense layer have no effect, such as negative outputs before ReLU."""
        return bool(self.silent(self._random(64, self.layer(self.first).out_features)).any())

    def silent(self, first: Tensor) -> Tensor:
        """Return which outputs of the first dense layer have no effect on the outputs of the model.

        Args:
            first: The outputs of the first dense layer, one row for each sample.
        """
        first = first.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.outputs(first).square().sum(), first)
        return gradient == 0

    def check_rows(self) -> None:
        """Check that the model's outputs for one sample depend on no other sample of a batch and on no random number.

        Batch norm and dropout in train mode fail this check.
        """
        first = self._random(DUMMIES, self.layer(self.first).out_features)
        changed = torch.cat([first[:1], self._random(DUMMIES - 1, first.shape[1], seed=1)])
        with torch.no_grad():
            before, after = self.outputs(first), self.outputs(changed)
        if not torch.allclose(before[:1], after[:1], rtol=1e-9, atol=1e-12):
            raise DoesNotFit(
                "the model mixes the samples of a batch or is random, as batch norm and dropout in training"
            )

    def check_features(self) -> None:
        """Check that the features of a sample depend on no other sample of a batch and on no random number.

        The features are the inputs of the first dense layer. Batch norm and dropout in train mode fail this check. So
        do features without a derivative with respect to the samples, as those of embeddings.
        """
        before = next(inputs for path, inputs in self.calls if path == self.first)
        changed = self.lookups.valid(
            torch.cat([self._dummies[:1], self._random(1, *self.shape, seed=1)])
        ).requires_grad_()
        handle = self.layer(self.first).register_forward_pre_hook(stop_at_input)
        try:
            with torch.enable_grad():
                self.model(changed)
        except Reached as reached:
            if not reached.inputs.requires_grad:
                raise DoesNotFit(
                    "the features have no derivative with respect to the samples, as those of embeddings"
                ) from None
            if torch.allclose(before[:1], reached.inputs[:1], rtol=1e-9, atol=1e-12):
                return
        finally:
            handle.remove()
        raise DoesNotFit("the features mix the samples of a batch or are random, as batch norm and dropout in training")

    def _random(self, *shape: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, dtype=torch.double, generator=generator).to(self.device)

    def _return_given(self, inputs: Tensor) -> Tensor:
        assert self._given is not None
        return self._given

    def _record_output(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._seen["output"] = output

    def _record_calls(self) -> list[tuple[str, Tensor]]:
        """Return the path and the inputs for each call of a dense layer, in the order of the forward pass."""
        calls: list[tuple[str, Tensor]] = []
        handles = [
            module.register_forward_pre_hook(lambda module, inputs, path=path: calls.append((path, inputs[0].detach())))
            for path, module in self.model.named_modules()
            if isinstance(module, nn.Linear)
        ]
        self._dummies = self.lookups.valid(self._random(DUMMIES, *self.shape))
        try:
            with torch.no_grad():
                self.model(self._dummies)
        except Exception as problem:
            raise DoesNotFit(f"the model does not run on a dummy sample ({type(problem).__name__})") from problem
        finally:
            for handle in handles:
                handle.remove()
        return calls

    def _first(self) -> str:
        size = math.prod(self.shape)
        for path, inputs in self.calls:
            if inputs.ndim == 2 and len(inputs) == DUMMIES and (not self.on_samples or inputs.shape[1] == size):
                return path
        raise DoesNotFit(
            f"no dense layer gets {'the samples themselves' if self.on_samples else 'features of samples'}"
        )

    def samples(self, inputs: Tensor, data: DataSpec) -> Tensor:
        """Convert inputs of the first dense layer back to samples, and undo the normalisation.

        This works only if the dense layer gets the samples themselves.

        Args:
            inputs: The inputs of the first dense layer, one row for each sample.
            data: The description of the samples.
        """
        assert self.entrance is not None
        return self.entrance.undo(inputs, data)

    def _entrance(self) -> Entrance:
        """Return the function that converts samples to inputs of the first dense layer.

        An error is raised if this function does more than reorder the values, or scale and shift each value.
        """
        inputs, flat = next(inputs for path, inputs in self.calls if path == self.first), self._dummies.flatten(1)
        ones = torch.ones_like(flat[0])
        sorted_inputs, sorted_flat = inputs[0].sort(), flat[0].sort()
        order = torch.empty_like(sorted_flat.indices)
        order[sorted_inputs.indices] = sorted_flat.indices
        if torch.equal(flat[:, order], inputs):
            return Entrance(order, ones, 0 * ones)
        scale = (inputs[0] - inputs[1]) / (flat[0] - flat[1])
        shift = inputs[0] - scale * flat[0]
        if bool((scale != 0).all()) and torch.allclose(scale * flat + shift, inputs, rtol=1e-6, atol=1e-9):
            return Entrance(torch.arange(len(ones), device=self.device), scale, shift)
        raise DoesNotFit("no dense layer gets the samples themselves")

    def _check_parameters(self, path: str, observation: Observation) -> None:
        """Check that a dense layer is trained, has a bias, is called once and shares no parameter with other layers."""
        layer, words = self.layer(path), f"the dense layer {path!r}"
        if self.needs_bias and not self.has_bias(path):
            raise DoesNotFit(f"{words} has no bias")
        original = dict(observation.model.named_parameters())
        names = (inside(path, "weight"), inside(path, "bias")) if self.has_bias(path) else (inside(path, "weight"),)
        if not all(name in original and original[name].requires_grad for name in names):
            raise DoesNotFit(f"{words} is not trained")
        owners = sum(value is layer.weight for module in self.model.modules() for value in module.parameters(False))
        if owners != 1 or sum(called == path for called, _ in self.calls) != 1:
            raise DoesNotFit(f"{words} is used more than once")


def one_gradient_of(observation: Observation) -> dict[str, Tensor]:
    """Return the gradient of one batch in double precision, or raise :class:`DoesNotFit`.

    If the client sent weights after one step of SGD, the gradient is computed from the weights. This gradient is the
    decrease of the weights divided by the learning rate, minus the weight decay times the server's weights.

    Args:
        observation: The message of the client.
    """
    reason = why_no_gradient(observation)
    if reason is not None:
        raise DoesNotFit(f"made for one gradient or one local step with a known learning rate, and {reason}")
    return gradient_of(observation)


def takes_one_step(observation: Observation) -> bool:
    """Return whether the client is known to have sent one gradient, or to have taken one local step."""
    training = observation.training
    if observation.kind == "gradient":
        return True
    known = None not in (training.epochs, training.batch_size, training.samples)
    return known and training.steps == 1


def augmented(gradient: dict[str, Tensor], path: str) -> Tensor:
    """Return the gradients of the kernel and the bias of a dense layer as one matrix. The bias is the last column.

    Args:
        gradient: A dictionary from the name of each parameter of the model to its gradient.
        path: The path of the layer in the model. If the layer has no bias, the matrix is the gradient of its kernel.
    """
    kernel, bias = gradient[inside(path, "weight")], gradient.get(inside(path, "bias"))
    return kernel if bias is None else torch.cat([kernel, bias[:, None]], 1)


def stop_at_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """End a forward pass at the input of a layer. This is a forward pre-hook."""
    raise Reached(inputs[0])


def _check_cheaply(observation: Observation, on_samples: bool, least: int) -> None:
    """Raise an error if the model's list of layers already shows that the attack does not apply.

    No forward pass is needed. With ``on_samples``, a dense layer must have as many inputs as a sample has values.
    Otherwise, the model must have at least ``least`` dense layers.
    """
    size = math.prod(observation.data.shape)
    dense = [module for module in observation.model.modules() if isinstance(module, nn.Linear)]
    if on_samples and not any(module.in_features == size for module in dense):
        raise DoesNotFit("no dense layer gets the samples themselves")
    if not on_samples and len(dense) < least:
        counted = "fewer than two dense layers, and two consecutive ones are needed" if least > 1 else "no dense layer"
        raise DoesNotFit(f"the model has {counted}")
