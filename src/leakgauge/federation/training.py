r"""Local training, as real clients run it and as attackers differentiate through it.

One step of SGD with momentum :math:`\mu` and weight decay :math:`\omega` on the batch :math:`(x_t, y_t)` is

.. math::
    g_t = \nabla_\theta\, \ell(f(x_t; \theta_t), y_t) + \omega\,\theta_t, \qquad
    v_{t+1} = \mu v_t + g_t, \qquad
    \theta_{t+1} = \theta_t - \eta\, v_{t+1}.

:func:`local_sgd` runs :math:`T` such steps in one of three ways. All three give the same weights.

=============  =======================================  ======================================================
``gradients``  what is stored                           cost of an attack step
=============  =======================================  ======================================================
``"none"``     nothing, as in a real client             \-
``"graph"``    the graph of every step                  least time, and memory for T graphs
``"adjoint"``  the state before every sqrt(T)-th step   time of about one more training, and memory for one
                                                        graph and 2 sqrt(T) states
=============  =======================================  ======================================================

``"graph"`` and ``"adjoint"`` can differentiate :math:`\theta_T` with respect to the inputs and to soft labels. The
adjoint method goes from the last step to the first, with the graph of one step at a time. It carries the adjoints
:math:`(a_\theta, a_v)` of weights and velocity backwards through the vector-Jacobian product of each step. Between two
stored states, the method trains forward again, with the same random numbers for dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import LocalTraining, Mode
from leakgauge.core.params import Params, buffers_of
from leakgauge.federation.defence import Protection

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]
Gradients = Literal["none", "graph", "adjoint"]


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of a regression whose model returns one value for each sample."""
    return (outputs.reshape(targets.shape) - targets).square().mean()


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of a model that returns one logit for each sample."""
    return F.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets.to(outputs.dtype))


#: The losses by name. To add a function of outputs and targets, write ``LOSSES["mine"] = function``.
LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "mse": mean_squared_error,
    "binary_cross_entropy": binary_cross_entropy,
}


@contextmanager
def in_mode(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Put a model into train or eval mode, and restore the mode of each of its modules afterwards."""
    before = {module: module.training for module in model.modules()}
    model.train(mode == "train")
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def draw_order(samples: int, batch_size: int, epochs: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return the row indices of the samples in each local step.

    Every epoch has a new random order. The last batch of an epoch may be smaller.

    Args:
        samples: The number of the client's samples.
        batch_size: The number of samples in a step.
        epochs: The number of passes over all samples.
        generator: The random generator of the order.
    """
    return tuple(rows for _ in range(epochs) for rows in torch.randperm(samples, generator=generator).split(batch_size))


@dataclass(frozen=True)
class State:
    """The state of local training between two steps.

    Args:
        weights: The weights.
        velocity: The velocity of the trained weights. It is empty if there is no momentum.
        buffers: The batch-norm statistics and other buffers.
    """

    weights: Params
    velocity: Params
    buffers: Params


class Trainer:
    """The step function of one model under one recipe.

    The results are the same with and without ``functional``, with two exceptions. With ``functional``, dropout draws
    other masks for transposed tensors, and weight decay also shrinks parameters that the forward pass does not use.

    Args:
        model: The architecture.
        training: The recipe.
        functional: Whether gradients are computed with ``torch.func``. This is needed for ``torch.func.vmap`` over
            steps.
        protection: The client's defences.
    """

    def __init__(
        self,
        model: nn.Module,
        training: LocalTraining,
        *,
        functional: bool = False,
        protection: Protection | None = None,
    ) -> None:
        if training.loss not in LOSSES:
            raise UnknownName("loss", training.loss, LOSSES)
        self.model = model
        self.functional = functional
        self.protection = protection
        self.loss_function = LOSSES[training.loss]
        self.mode: Mode = training.mode
        self.lr = float(training.lr) if training.lr is not None else math.nan
        self.momentum = float(training.momentum or 0.0)
        self.weight_decay = float(training.weight_decay or 0.0)
        self.trainable = [name for name, value in model.named_parameters() if value.requires_grad]
        if not self.trainable:
            raise InvalidInput("no parameter of the model requires a gradient, so there is nothing to train")

    def start(self, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None) -> State:
        """Return the state before the first step. If ``buffers`` is ``None``, the buffers of the model are used."""
        velocity = {name: torch.zeros_like(weights[name]) for name in self.trainable} if self.momentum else {}
        initial = buffers_of(self.model) if buffers is None else buffers
        return State(dict(weights), velocity, {name: value.clone() for name, value in initial.items()})

    @contextmanager
    def active(self) -> Iterator[None]:
        """Set the model's mode and use the plain formula for attention inside the block.

        Steps must be taken inside this block. The plain formula is needed because fused attention kernels have no
        second derivative. Their dropout masks also differ from the masks of the plain formula.
        """
        with in_mode(self.model, self.mode), sdpa_kernel(SDPBackend.MATH):
            yield

    def _loss(self, trained: Params, fixed: Params, buffers: Params, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = functional_call(self.model, {**fixed, **trained, **buffers}, (inputs,))
        return self.loss_function(outputs, targets)

    def gradient(self, state: State, batch: Batch, *, graph: bool) -> tuple[Params, Params]:
        """Return the gradient of the loss on one batch (without weight decay), and the buffers after the forward pass.

        The gradient is zero for parameters that are frozen or not used.

        Args:
            state: The state at which the gradient is computed.
            batch: The inputs and targets.
            graph: Whether the gradient can be differentiated.
        """
        partial, buffers = self._gradient(state, batch, graph=graph)
        every = {name: partial[name] if name in partial else torch.zeros_like(v) for name, v in state.weights.items()}
        return every, buffers

    def _gradient(self, state: State, batch: Batch, *, graph: bool) -> tuple[Params, Params]:
        """Return the gradient after the defences, and the buffers. Parameters without a gradient are left out."""
        if self.protection is None:
            return self._plain_gradient(state, batch, graph=graph)
        batch = self.protection.on_batch(batch)
        if self.protection.needs_sample_gradients:
            of_samples, buffers = self._explained_sample_gradients(state, batch)
            return self.protection.mean_gradient(of_samples), buffers
        gradient, buffers = self._plain_gradient(state, batch, graph=graph)
        return self.protection.on_gradient(gradient), buffers

    def _plain_gradient(self, state: State, batch: Batch, *, graph: bool) -> tuple[Params, Params]:
        trained, fixed, buffers = self._parts(state)
        if self.functional:

            def loss(trained: Params, buffers: Params, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Params]:
                return self._loss(trained, fixed, buffers, inputs, targets), buffers

            result: tuple[Params, Params] = torch.func.grad(loss, has_aux=True)(trained, buffers, *batch)
            return result
        with torch.enable_grad():
            if graph:
                leaves = {name: v if v.requires_grad else v.detach().requires_grad_() for name, v in trained.items()}
            else:
                leaves = {name: value.detach().requires_grad_() for name, value in trained.items()}
            value = self._loss(leaves, fixed, buffers, *batch)
            # A parameter that the forward pass does not use is not updated, as with an optimiser of torch.
            gradients = torch.autograd.grad(value, list(leaves.values()), create_graph=graph, allow_unused=True)
        return {name: value for name, value in zip(leaves, gradients, strict=True) if value is not None}, buffers

    def _parts(self, state: State) -> tuple[Params, Params, Params]:
        """Return the trained weights, the frozen weights, and a copy of the buffers for one forward pass."""
        trained = {name: state.weights[name] for name in self.trainable}
        fixed = {name: value for name, value in state.weights.items() if name not in trained}
        return trained, fixed, {name: value.detach().clone() for name, value in state.buffers.items()}

    def sample_gradients(self, state: State, batch: Batch) -> tuple[Params, Params]:
        """Return the gradients of all samples, stacked in the first dimension, and the buffers after the forward pass.

        If the loss is a mean over samples, the mean of these gradients is the gradient of the batch. The gradients are
        computed with ``torch.func``.
        """
        trained, fixed, buffers = self._parts(state)

        def loss(trained: Params, buffers: Params, inputs: Tensor, target: Tensor) -> tuple[Tensor, Params]:
            return self._loss(trained, fixed, buffers, inputs.unsqueeze(0), target.unsqueeze(0)), buffers

        every_sample = torch.func.vmap(
            torch.func.grad(loss, has_aux=True),
            in_dims=(None, None, 0, 0),
            out_dims=(0, None),  # type: ignore[arg-type]  # a forward pass that writes to buffers is refused
            randomness="different",
        )
        result: tuple[Params, Params] = every_sample(trained, buffers, *batch)
        return result

    def _explained_sample_gradients(self, state: State, batch: Batch) -> tuple[Params, Params]:
        try:
            return self.sample_gradients(state, batch)
        except (RuntimeError, ValueError) as problem:
            first_line = str(problem).partition("\n")[0]
            raise InvalidInput(
                f"a defence needs the gradient of each sample, which this model does not have ({first_line}). "
                "Use a model that treats the samples of a batch separately, or another defence."
            ) from problem

    def step(self, state: State, batch: Batch, *, graph: bool) -> State:
        """Return the state after one local step. With ``graph``, this state can be differentiated."""
        return self.descend(state, *self._gradient(state, batch, graph=graph))

    def descend(self, state: State, gradient: Params, buffers: Params) -> State:
        """Return the state after a step along a gradient.

        Args:
            state: The state before the step. Clients may be stacked along the first dimension.
            gradient: A dictionary from the names of parameters to gradients. Parameters without a gradient may be
                missing.
            buffers: The buffers after the forward pass.
        """
        weights, velocity = dict(state.weights), dict(state.velocity)
        for name, value in gradient.items():
            # ``add`` with ``alpha`` reads the numbers one time less than a product and a sum would, in both passes.
            if self.weight_decay:
                value = value.add(state.weights[name], alpha=self.weight_decay)
            if self.momentum:
                velocity[name] = value = value.add(state.velocity[name], alpha=self.momentum)
            weights[name] = state.weights[name].add(value, alpha=-self.lr)
        return State(weights, velocity, buffers)


def local_sgd(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    batches: Iterable[Batch],
    training: LocalTraining,
    *,
    buffers: Mapping[str, Tensor] | None = None,
    gradients: Gradients = "none",
    functional: bool = False,
    protection: Protection | None = None,
) -> tuple[Params, Params]:
    """Train weights on one batch after another, and return the weights and buffers after the last batch.

    Args:
        model: The architecture. Its own weights are neither used nor changed.
        weights: The weights to start from.
        batches: The inputs and targets of each step.
        training: The recipe, of which ``lr``, ``momentum``, ``weight_decay``, ``loss`` and ``mode`` are used.
        buffers: The buffers to start from. By default, the buffers of the model.
        gradients: The way to differentiate the result, from the table at the top of this module.
        functional: Whether ``gradients="graph"`` must work under ``torch.func.vmap``.
        protection: The defences of a real client. They cannot be differentiated.
    """
    training.need("lr")
    if protection is not None and gradients != "none":
        raise InvalidInput(f"training with defences cannot be differentiated. Use gradients='none', not {gradients!r}.")
    trainer = Trainer(model, training, functional=functional, protection=protection)
    state = trainer.start(weights, buffers)
    with trainer.active():
        if gradients == "adjoint":
            return _adjoint(trainer, state, list(batches))
        if gradients not in ("none", "graph"):
            raise InvalidInput(f"gradients must be 'none', 'graph' or 'adjoint', not {gradients!r}")
        for batch in batches:
            state = trainer.step(state, batch, graph=gradients == "graph")
    return state.weights, state.buffers


def _adjoint(trainer: Trainer, start: State, batches: Sequence[Batch]) -> tuple[Params, Params]:
    run = _AdjointRun(trainer, start, len(batches))
    inputs, targets = [batch[0] for batch in batches], [batch[1] for batch in batches]
    outputs = _Adjoint.apply(run, *inputs, *targets)  # type: ignore[no-untyped-call]
    return {**start.weights, **dict(zip(trainer.trainable, outputs, strict=True))}, run.final_buffers


class _AdjointRun:
    """The values that an adjoint run stores between its forward and its backward pass."""

    def __init__(self, trainer: Trainer, start: State, steps: int) -> None:
        self.trainer, self.start, self.steps = trainer, start, steps
        # The first state of every segment is stored, and in the backward pass also all states of one segment. Segments
        # of sqrt(steps) steps take the least memory. To store all states would be slower than to train again, because
        # of fresh memory pages.
        self.segment = max(1, math.isqrt(steps))
        self.states: dict[int, State] = {}
        self.random: list[_RandomState] = []
        self.final_buffers: Params = {}

    def forward(self, batches: Sequence[Batch]) -> State:
        state = self.start
        for index, batch in enumerate(batches):
            if index % self.segment == 0:
                self.states[index] = state
            self.random.append(_RandomState(batch[0].device))
            state = self.trainer.step(state, batch, graph=False)
        self.final_buffers = state.buffers
        return state

    def states_of_segment(self, first: int, batches: Sequence[Batch]) -> list[State]:
        """Train a segment again from its stored state, and return the state before each step."""
        states = [self.states[first]]
        for index in range(first, min(first + self.segment, self.steps) - 1):
            with self.random[index].restored():
                states.append(self.trainer.step(states[-1], batches[index], graph=False))
        return states


class _RandomState:
    """The state of the random generators before a step. When it is restored, dropout draws the same masks again."""

    def __init__(self, device: torch.device) -> None:
        self.cpu = torch.get_rng_state()
        self.device = device if device.type == "cuda" else None
        self.cuda = torch.cuda.get_rng_state(device) if self.device is not None else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        devices = [] if self.device is None else [self.device]
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device or "cuda")
            yield


class _Adjoint(torch.autograd.Function):
    """A whole training as one autograd node, from all batches to the final weights."""

    @staticmethod
    def forward(ctx: Any, run: _AdjointRun, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run
        ctx.save_for_backward(*tensors)
        final = run.forward(list(zip(tensors[: run.steps], tensors[run.steps :], strict=True)))
        # Weights that did not change are the caller's tensors. Without detach, autograd would mark these tensors.
        return tuple(final.weights[name].detach() for name in run.trainer.trainable)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        run: _AdjointRun = ctx.run
        steps, trainer = run.steps, run.trainer
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        batches = list(zip(tensors[:steps], tensors[steps:], strict=True))
        wanted = ctx.needs_input_grad[1:]
        results: list[Tensor | None] = [None] * (2 * steps)
        adjoint = dict(zip(trainer.trainable, outputs, strict=True))
        momentum_adjoint = {name: torch.zeros_like(value) for name, value in run.start.velocity.items()}
        with trainer.active():
            for first in reversed(range(0, steps, run.segment)):
                states = run.states_of_segment(first, batches)
                for index in reversed(range(first, first + len(states))):
                    with run.random[index].restored():
                        adjoint, momentum_adjoint, results[index], results[steps + index] = _step_adjoint(
                            trainer,
                            states.pop(),
                            batches[index],
                            (wanted[index], wanted[steps + index]),
                            adjoint,
                            momentum_adjoint,
                        )
        return (None, *results)


def _step_adjoint(
    trainer: Trainer,
    state: State,
    batch: Batch,
    wanted: tuple[bool, bool],
    adjoint: Params,
    momentum_adjoint: Params,
) -> tuple[Params, Params, Tensor | None, Tensor | None]:
    """Carry the adjoints of weights and velocity back through one step.

    Returns:
        The adjoints of weights and velocity before the step, and the gradients of the inputs and the targets. A
        gradient that is not wanted is ``None``.
    """
    with torch.enable_grad():
        weights = {name: state.weights[name].detach().requires_grad_() for name in trainer.trainable}
        velocity = {name: value.detach().requires_grad_() for name, value in state.velocity.items()}
        inputs, targets = (
            tensor.detach().requires_grad_() if want else tensor for tensor, want in zip(batch, wanted, strict=True)
        )
        after = trainer.step(
            State({**state.weights, **weights}, velocity, state.buffers), (inputs, targets), graph=True
        )
        leaves = [*weights.values(), *velocity.values()]
        leaves += [tensor for tensor, want in zip((inputs, targets), wanted, strict=True) if want]
        gradients = torch.autograd.grad(
            [after.weights[name] for name in weights] + list(after.velocity.values()),
            leaves,
            [adjoint[name] for name in weights] + list(momentum_adjoint.values()),
            materialize_grads=True,
        )
    remaining = iter(gradients)
    new_adjoint = {name: next(remaining) for name in weights}
    new_momentum = {name: next(remaining) for name in velocity}
    input_gradient = next(remaining) if wanted[0] else None
    target_gradient = next(remaining) if wanted[1] else None
    return new_adjoint, new_momentum, input_gradient, target_gradient
