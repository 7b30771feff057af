"""Functions that differentiate a local training by the adjoint method, which stores only one step's graph at a time.

The formulas are in :mod:`leakgauge.federation.training`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leakgauge.core.params import Params

if TYPE_CHECKING:
    from leakgauge.federation.training import Batch, State, Trainer


def differentiable_run(trainer: Trainer, start: State, batches: Sequence[Batch]) -> State:
    """Train on all batches, and return the final state. Its weights can be differentiated with respect to the batches.

    Args:
        trainer: The object that computes the training steps.
        start: The state before the first batch.
        batches: The inputs and targets of each batch.
    """
    run = _AdjointRun(trainer, start, len(batches))
    inputs, targets = [batch[0] for batch in batches], [batch[1] for batch in batches]
    outputs = _Adjoint.apply(run, *inputs, *targets)  # type: ignore[no-untyped-call]
    return replace(run.final, weights={**start.weights, **dict(zip(trainer.trainable, outputs, strict=True))})


class _AdjointRun:
    """The values that a training run stores between its forward pass and its backward pass."""

    def __init__(self, trainer: Trainer, start: State, steps: int) -> None:
        self.trainer, self.start, self.steps = trainer, start, steps
        # The first state of every segment is stored, and in the backward pass also all states of one segment. Segments
        # of sqrt(steps) steps take the least memory. To store all states would be slower than to train again, because
        # of fresh memory pages.
        self.segment = max(1, math.isqrt(steps))
        self.states: dict[int, State] = {}
        self.random: list[_RandomState] = []
        self.final = start

    def forward(self, batches: Sequence[Batch]) -> State:
        state = self.start
        for index, batch in enumerate(batches):
            if index % self.segment == 0:
                self.states[index] = state
            self.random.append(_RandomState(batch[0].device))
            state = self.trainer.step(state, batch, graph=False)
        self.final = state
        return state

    def states_of_segment(self, first: int, batches: Sequence[Batch]) -> list[State]:
        """Repeat the training steps of one segment, and return the state before each step.

        A segment lies between two stored states.

        Args:
            first: The index of the segment's first step, at which a state is stored.
            batches: The inputs and targets of every batch.
        """
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
    """An autograd function that computes the final weights of a whole training from all its batches."""

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
        of_slots = {
            slot: {name: torch.zeros_like(value) for name, value in tensors.items()}
            for slot, tensors in run.start.slots.items()
        }
        with trainer.active():
            for first in reversed(range(0, steps, run.segment)):
                states = run.states_of_segment(first, batches)
                for index in reversed(range(first, first + len(states))):
                    with run.random[index].restored():
                        adjoint, of_slots, results[index], results[steps + index] = _step_adjoint(
                            trainer,
                            states.pop(),
                            batches[index],
                            (wanted[index], wanted[steps + index]),
                            adjoint,
                            of_slots,
                        )
        return (None, *results)


def _step_adjoint(
    trainer: Trainer,
    state: State,
    batch: Batch,
    wanted: tuple[bool, bool],
    adjoint: Params,
    of_slots: dict[str, Params],
) -> tuple[Params, dict[str, Params], Tensor | None, Tensor | None]:
    """Propagate the adjoints of the weights and of the optimiser's tensors (such as momentum) back through one step.

    The adjoint of a tensor is the derivative of the attack's loss with respect to this tensor.

    Returns:
        The adjoints of the weights and of the optimiser's tensors before the step, and the gradients of the inputs and
        the targets. If ``wanted`` excludes one of these gradients, it is ``None``.
    """
    with torch.enable_grad():
        weights = {name: state.weights[name].detach().requires_grad_() for name in trainer.trainable}
        slots = {
            slot: {name: value.detach().requires_grad_() for name, value in tensors.items()}
            for slot, tensors in state.slots.items()
        }
        inputs, targets = (
            tensor.detach().requires_grad_() if want else tensor for tensor, want in zip(batch, wanted, strict=True)
        )
        before = replace(state, weights={**state.weights, **weights}, slots=slots)
        after = trainer.step(before, (inputs, targets), graph=True)
        leaves = [*weights.values(), *_flat(slots)]
        leaves += [tensor for tensor, want in zip((inputs, targets), wanted, strict=True) if want]
        outputs = [after.weights[name] for name in weights] + _flat(after.slots)
        adjoints = [adjoint[name] for name in weights] + _flat(of_slots)
        pairs = [(output, value) for output, value in zip(outputs, adjoints, strict=True) if output.requires_grad]
        gradients = torch.autograd.grad(
            [output for output, _ in pairs], leaves, [value for _, value in pairs], materialize_grads=True
        )
    remaining = iter(gradients)
    new_adjoint = {name: next(remaining) for name in weights}
    new_slots = {slot: {name: next(remaining) for name in tensors} for slot, tensors in slots.items()}
    input_gradient = next(remaining) if wanted[0] else None
    target_gradient = next(remaining) if wanted[1] else None
    return new_adjoint, new_slots, input_gradient, target_gradient


def _flat(slots: dict[str, Params]) -> list[Tensor]:
    return [value for tensors in slots.values() for value in tensors.values()]
