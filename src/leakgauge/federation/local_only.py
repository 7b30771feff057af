r"""The model that a client would have trained by itself: the audit's reference for LMRA, never seen by an attack.

LMRA's optimal local model is :math:`\theta_c^* = \arg\min_\theta L_c(\theta)`. For a linear regression that is a solve;
else it is where training on the client's data leads from the federation's first model, until its loss has stopped
falling or hardly anything is left of it. Whose steps lead there is the audit's choice: the client's own, plain SGD, may
take thousands of epochs where Adam takes hundreds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Mode
from leakgauge.core.params import Params, buffers_of, parameters_of
from leakgauge.core.seeding import generator, seeded
from leakgauge.data.dataset import Dataset
from leakgauge.federation.client import check_model, prepared, recipe_for
from leakgauge.federation.training import Batch, State, Trainer, draw_order

#: How often the loss must not have fallen: that of SGD goes up and down on its way.
STILL = 10
#: By how much of the lowest loss another may lie above it and still count as no change: what is higher has leapt away.
LEAP = 0.1
#: After so many looks at all data nothing is left of earlier statistics, which count for nine tenths each time.
SETTLE = 100


@dataclass(frozen=True, eq=False)
class Alone:
    """What a client's training by itself led to.

    ``losses`` are those on all of its data, at first and after every ``patience`` epochs.
    """

    weights: Params = field(repr=False)
    buffers: Params = field(repr=False)
    epochs: int
    losses: tuple[float, ...]
    converged: bool


def train_alone(
    model: nn.Module,
    data: Dataset,
    *,
    lr: float,
    epochs: int,
    batch_size: int | None = None,
    loss: str | None = None,
    mode: Mode = "train",
    adam: bool = False,
    tolerance: float = 1e-3,
    fitted: float = 0.0,
    patience: int = 20,
    seed: int = 0,
) -> Alone:
    """Train a client by itself for up to ``epochs`` epochs of plain SGD, or of Adam, from the weights of ``model``.

    Every ``patience`` epochs the loss on all of its data is taken. Training has converged when for ten times that was
    within a tenth of the lowest and not lower by ``tolerance`` of it, or when no more than ``fitted`` of the first loss
    is left: a network that can learn its data by heart would else never be done. SGD may leap away from a minimum and
    come back, which is not counted; the model of the lowest loss is kept.
    """
    if epochs < 1 or patience < 1:
        raise InvalidInput(f"epochs and patience must be at least 1, not {epochs} and {patience}")
    training = recipe_for(data, loss=loss, mode=mode, lr=lr, epochs=1, batch_size=batch_size)
    check_model(model, data, training.loss)
    trainer = Trainer(model, training)
    weights = parameters_of(model)
    inputs, targets = prepared(data, weights)
    state = trainer.start({name: value.clone() for name, value in weights.items()}, buffers_of(model))
    step = _adam(trainer, state, lr) if adam else partial(trainer.step, graph=False)
    draw = generator(seed, "alone")
    losses, number, still, converged = [_loss(trainer, state, inputs, targets)], 0, 0, False
    mark, lowest, best = losses[0], losses[0], _copied(state)
    with seeded(seed, "dropout"), trainer.active():
        for number in range(1, epochs + 1):
            for rows in draw_order(len(data), int(training.need("batch_size")), 1, draw):
                state = step(state, (inputs[rows], targets[rows]))
            if number % patience == 0:
                losses.append(_loss(trainer, state, inputs, targets))
                if losses[-1] < (1 - tolerance) * mark:
                    mark, still = losses[-1], 0
                elif losses[-1] <= (1 + LEAP) * mark:
                    still += 1
                if losses[-1] < lowest:
                    lowest, best = losses[-1], _copied(state)
                converged = still == STILL or lowest <= fitted * losses[0]
                if converged:
                    break
    if epochs < patience:
        best = state
    return Alone(best.weights, _settled(trainer, best, inputs), number, tuple(losses), converged)


def _settled(trainer: Trainer, state: State, inputs: Tensor) -> Params:
    """Batch-norm statistics as they belong to the weights: those that training leaves behind lag."""
    buffers = {name: value.clone() for name, value in state.buffers.items()}
    if buffers and trainer.mode == "train":
        with torch.no_grad(), trainer.active():
            for _ in range(SETTLE):
                functional_call(trainer.model, {**state.weights, **buffers}, (inputs,))
    return buffers


def _adam(trainer: Trainer, first: State, lr: float) -> Callable[[State, Batch], State]:
    """Steps of Adam, each of which changes the weights of ``first`` in place."""
    optimiser = torch.optim.Adam(first.weights.values(), lr=lr)

    def step(state: State, batch: Batch) -> State:
        gradient, buffers = trainer.gradient(state, batch, graph=False)
        for name, value in state.weights.items():
            value.grad = gradient[name]
        optimiser.step()
        return State(state.weights, state.velocity, buffers)

    return step


def _copied(state: State) -> State:
    return State({name: value.detach().clone() for name, value in state.weights.items()}, {}, state.buffers)


def _loss(trainer: Trainer, state: State, inputs: Tensor, targets: Tensor) -> float:
    buffers = {name: value.clone() for name, value in state.buffers.items()}
    with torch.no_grad(), trainer.active():
        outputs = functional_call(trainer.model, {**state.weights, **buffers}, (inputs,))
    return float(trainer.loss_function(outputs, targets))


def least_squares_optimum(data: Dataset, *, bias: bool) -> Params:
    """The optimum of a linear regression with weights ``head.weight`` (and ``head.bias``), by a direct solve."""
    if data.spec.classes is not None:
        raise InvalidInput(f"{data.name} is a classification; its optimum has no closed form, use train_alone()")
    inputs = data.spec.normalise(data.inputs.double()).flatten(1)
    if bias:
        inputs = torch.cat((inputs, torch.ones(len(data), 1, dtype=torch.double)), dim=1)
    found = torch.linalg.lstsq(inputs, data.targets.double().reshape(len(data), 1), driver="gelsd").solution[:, 0]
    return {"head.weight": found[: inputs.shape[1] - bias].unsqueeze(0), **({"head.bias": found[-1:]} if bias else {})}
