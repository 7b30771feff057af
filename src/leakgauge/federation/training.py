r"""Local training, as real clients run it and as attackers differentiate through it.

With :math:`(x_t, y_t)` the batch of step :math:`t` and :math:`U` the update rule of the client's optimiser
(:mod:`leakgauge.federation.update_rules`), a step is

.. math::
    g_t = \nabla_\theta\, \ell(f(x_t; \theta_t), y_t), \qquad
    (\theta_{t+1}, s_{t+1}) = U(\theta_t, s_t, g_t),

where :math:`s_t` are the tensors that the optimiser keeps, such as the velocity of SGD. If gradients are accumulated,
:math:`g_t` is the mean over several batches. :func:`local_sgd` runs such steps in one of three ways. All three give the
same weights. With :math:`T` steps, they cost:

=============  =======================================  ======================================================
``gradients``  what is stored                           cost of an attack step
=============  =======================================  ======================================================
``"none"``     nothing, as in a real client             \-
``"graph"``    the graph of every step                  least time, and memory for T graphs
``"adjoint"``  the state before every sqrt(T)-th step   time of about one more training, and memory for one
                                                        graph and 2 sqrt(T) states
=============  =======================================  ======================================================

``"graph"`` and ``"adjoint"`` can differentiate :math:`\theta_T` with respect to the inputs and to soft labels. The
adjoint method goes from the last step to the first, with the graph of one step at a time. The adjoints
:math:`(a_\theta, a_s)` are the derivatives of the attack's loss with respect to :math:`(\theta_t, s_t)`. The
vector-Jacobian product of each step carries them one step back. Between two stored states, the method trains forward
again, with the same random numbers for dropout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining, Mode
from leakgauge.core.params import Params, buffers_of
from leakgauge.federation.adjoint import differentiable_run
from leakgauge.federation.defence import Protection
from leakgauge.federation.derivatives import CheapSecondDerivatives, has_costly_layers
from leakgauge.federation.losses import LOSSES, WithLoss, loss_of, takes_model
from leakgauge.federation.update_rules import Moment, UpdateRule

__all__ = ["LOSSES", "Batch", "Gradients", "State", "Trainer", "draw_order", "in_mode", "local_sgd"]

Batch = tuple[Tensor, Tensor]
Gradients = Literal["none", "graph", "adjoint"]
#: The smoothing of Adam's derivatives in an attacker's simulation.
SMOOTH = 0.3
#: The name under which the optimiser's tensors hold the sum of the gradients since the last step.
PENDING = "pending"
#: The layers that draw random masks in train mode.
_WITH_MASKS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention)


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
    """The state of local training between two batches.

    Args:
        weights: The current weights of the model.
        slots: The tensors that the optimiser keeps for the trained weights, such as ``{"velocity": {...}}``.
        buffers: The batch-norm statistics and other buffers.
        anchor: The weights that the server sent. FedProx's term pulls the current weights towards them.
        batches: The number of batches so far.
    """

    weights: Params
    slots: dict[str, Params]
    buffers: Params
    anchor: Params = field(default_factory=dict)
    batches: int = 0


class Trainer:
    """The local training of one model with given settings, step by step.

    The results are the same with and without ``functional``, with two exceptions. With ``functional``, dropout draws
    other masks for transposed tensors, and weight decay also shrinks parameters that the forward pass does not use.

    Args:
        model: The architecture.
        training: The settings of the client's training.
        functional: Whether gradients are computed with ``torch.func``. This is needed for ``torch.func.vmap`` over
            steps.
        protection: The client's defences.
        as_attacker: Whether an attacker simulates the client. If so, the derivatives of Adam are smoothed. The
            simulation then also has no dropout, because only the client knows the dropout masks.
    """

    def __init__(
        self,
        model: nn.Module,
        training: LocalTraining,
        *,
        functional: bool = False,
        protection: Protection | None = None,
        as_attacker: bool = False,
    ) -> None:
        self.model = model
        self.training = training
        self.functional = functional
        self.protection = protection
        self.as_attacker = as_attacker
        self.loss_function = loss_of(training)
        self.with_loss = WithLoss(model, self.loss_function) if takes_model(self.loss_function) else None
        self.mode: Mode = training.mode
        self.costly = has_costly_layers(model)
        self.lr = float(training.lr) if training.lr is not None else math.nan
        self.rule = UpdateRule.of(training, smooth=SMOOTH if as_attacker else 0.0)
        self.accumulation = training.accumulation or 1
        self.trainable = [name for name, value in model.named_parameters() if value.requires_grad]
        if not self.trainable:
            raise InvalidInput("no parameter of the model requires a gradient, so there is nothing to train")

    def start(
        self,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor] | None,
        *,
        anchor: Mapping[str, Tensor] | None = None,
        batches: int = 0,
    ) -> State:
        """Return the state before the first step.

        Args:
            weights: The weights to start from.
            buffers: The buffers to start from. By default, the buffers of the model.
            anchor: The weights that the server sent. By default, ``weights``.
            batches: The number of batches before the start, which the schedule of the learning rate counts.
        """
        names = (*self.rule.slots, PENDING) if self.accumulation > 1 else self.rule.slots
        slots = {slot: {name: torch.zeros_like(weights[name]) for name in self.trainable} for slot in names}
        initial = buffers_of(self.model) if buffers is None else buffers
        kept = dict(weights if anchor is None else anchor) if self.rule.proximal else {}
        return State(dict(weights), slots, {name: value.clone() for name, value in initial.items()}, kept, batches)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Set the model's mode and use the plain formula for attention inside the ``with`` block.

        Steps must be taken inside such a block. The plain formula is needed because fused attention kernels have no
        second derivative. Their dropout masks also differ from the masks of the plain formula.
        """
        with in_mode(self.model, self.mode), sdpa_kernel(SDPBackend.MATH):
            if self.as_attacker:
                for module in self.model.modules():
                    if isinstance(module, _WITH_MASKS):
                        module.eval()
            yield

    def _loss(self, tensors: Params, batch: Batch, *, graph: bool = False) -> Tensor:
        """Return the loss on one batch. With ``graph``, its second derivative is cheap."""
        with CheapSecondDerivatives() if graph and self.costly else nullcontext():
            if self.with_loss is not None:
                value: Tensor = functional_call(self.with_loss, {f"model.{k}": v for k, v in tensors.items()}, batch)
                return value
            return self.loss_function(functional_call(self.model, tensors, (batch[0],)), batch[1])

    def loss(self, state: State, batch: Batch) -> Tensor:
        """Return the loss on one batch.

        Args:
            state: The state at which the loss is computed.
            batch: The inputs and targets.
        """
        trained, fixed, buffers = self._parts(state)
        return self._loss({**fixed, **trained, **buffers}, batch)

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
        """Return the gradient as the client's defences change it, and the buffers after the forward pass.

        Parameters without a gradient are left out.
        """
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
                return self._loss({**fixed, **trained, **buffers}, (inputs, targets), graph=graph), buffers

            result: tuple[Params, Params] = torch.func.grad(loss, has_aux=True)(trained, buffers, *batch)
            return result
        with torch.enable_grad():
            if graph:
                leaves = {name: v if v.requires_grad else v.detach().requires_grad_() for name, v in trained.items()}
            else:
                leaves = {name: value.detach().requires_grad_() for name, value in trained.items()}
            value = self._loss({**fixed, **leaves, **buffers}, batch, graph=graph)
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
            return self._loss({**fixed, **trained, **buffers}, (inputs.unsqueeze(0), target.unsqueeze(0))), buffers

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

    def run(self, state: State, batches: Iterable[Batch], gradients: Gradients = "none") -> State:
        """Train on one batch after another, and return the state after the last batch.

        Args:
            state: The state to start from.
            batches: The inputs and targets of each batch.
            gradients: The way to differentiate the result, which is ``"none"``, ``"graph"`` or ``"adjoint"``. The table
                at the top of this module compares them.
        """
        self.training.need("lr")
        if gradients not in ("none", "graph", "adjoint"):
            raise InvalidInput(f"gradients must be 'none', 'graph' or 'adjoint', not {gradients!r}")
        with self.active():
            if gradients == "adjoint":
                return differentiable_run(self, state, list(batches))
            for batch in batches:
                state = self.step(state, batch, graph=gradients == "graph")
        return state

    def step(self, state: State, batch: Batch, *, graph: bool) -> State:
        """Train on one batch, and return the new state. With ``graph``, the new state can be differentiated."""
        return self.descend(state, *self._gradient(state, batch, graph=graph))

    def descend(self, state: State, gradient: Params, buffers: Params) -> State:
        """Return the state after a step along a gradient.

        If gradients are accumulated, the weights change only after the last batch of a step.

        Args:
            state: The state before the step.
            gradient: A dictionary from the names of parameters to gradients. Parameters without a gradient may be
                missing.
            buffers: The buffers after the forward pass.
        """
        step, share, is_last = self._place(state.batches)
        weights, slots = dict(state.weights), {slot: dict(tensors) for slot, tensors in state.slots.items()}
        if self.accumulation > 1:
            gradient = {name: slots[PENDING][name].add(value, alpha=share) for name, value in gradient.items()}
            rest = {name: torch.zeros_like(value) for name, value in gradient.items()} if is_last else gradient
            slots[PENDING] |= rest
        if is_last:
            moment = Moment(step, self.lr * self.training.factor(step))
            for name, value in self.rule.completed(gradient, state.weights, state.anchor).items():
                own = {slot: slots[slot][name] for slot in self.rule.slots}
                weights[name], own = self.rule.step(weights[name], value, own, moment)
                for slot, tensor in own.items():
                    slots[slot][name] = tensor
        return State(weights, slots, buffers, state.anchor, state.batches + 1)

    def _place(self, batch: int) -> tuple[int, float, bool]:
        """Return the place of a batch among the steps. A step may accumulate the gradients of several batches.

        Returns:
            The index of the batch's step, the share of the batch in the step's gradient, and whether the batch is the
            last one of the step.
        """
        if self.accumulation == 1:
            return batch, 1.0, True
        groups = self.training.batches_of_steps
        epoch, position = divmod(batch, sum(groups))
        step, offset = divmod(position, self.accumulation)
        return epoch * len(groups) + step, 1 / groups[step], offset == groups[step] - 1

    def repeated_step(self, state: State, batch: Batch) -> Params:
        """Return the update of one step divided by the learning rate, assuming that all gradients are equal.

        An attack multiplies this update by the number of applied gradients
        (:attr:`~leakgauge.core.local_training.LocalTraining.applied_gradients`) to predict the update of all steps. The
        prediction is exact for a single step. The update can be differentiated.

        Args:
            state: The state at which the gradient is computed.
            batch: The inputs and targets.
        """
        gradient, _ = self.gradient(state, batch, graph=True)
        trained = {name: gradient[name] for name in self.trainable}
        completed = self.rule.completed(trained, state.weights, state.anchor)
        return gradient | self.rule.repeated(completed, state.weights)


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
        training: The settings of the client's training. ``epochs``, ``batch_size`` and ``samples`` are needed only by
            some schedules and to accumulate gradients.
        buffers: The buffers to start from. By default, the buffers of the model.
        gradients: The way to differentiate the result, which is ``"none"``, ``"graph"`` or ``"adjoint"``. The table at
            the top of this module compares them.
        functional: Whether ``gradients="graph"`` must work under ``torch.func.vmap``.
        protection: The defences of a real client. They cannot be differentiated.
    """
    if protection is not None and gradients != "none":
        raise InvalidInput(f"training with defences cannot be differentiated. Use gradients='none', not {gradients!r}.")
    trainer = Trainer(model, training, functional=functional, protection=protection)
    state = trainer.run(trainer.start(weights, buffers), batches, gradients)
    return state.weights, state.buffers
