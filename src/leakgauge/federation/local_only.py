r"""The model that a client would have trained alone, which is the reference for the attacks of LMRA (Driouich et al.).

No attack sees this model.

LMRA's optimal local model is :math:`\theta_c^* = \arg\min_\theta L_c(\theta)`. For a linear regression, it is the
solution of a linear system. Otherwise, it is the result of training on the client's data alone. This training starts
from the first model of the federation. It ends when the loss no longer falls, or when only a tiny share of the first
loss is left. The optimiser may differ from the client's optimiser, because only the result matters. Plain SGD may need
thousands of epochs for a result that Adam reaches in hundreds of epochs.
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
from leakgauge.federation.client_recipe import Recipe
from leakgauge.federation.model_check import check_model, prepared
from leakgauge.federation.training import Batch, State, Trainer, draw_order

#: The number of checks without a lower loss after which training has converged. One check is not enough, because the
#: loss of SGD goes up and down.
STILL = 10
#: The relative distance from the lowest loss up to which a check counts as no change. A loss above that is a leap.
LEAP = 0.1
#: The number of passes over all data that update batch-norm statistics. Each pass keeps nine tenths of the old ones.
SETTLE = 100


@dataclass(frozen=True, eq=False)
class Alone:
    """The result of training one client alone.

    Args:
        weights: The weights with the lowest loss.
        buffers: The batch-norm statistics that belong to these weights.
        epochs: The number of epochs that were trained.
        losses: The loss on all of the client's data, before training and at each check for convergence.
        converged: Whether training converged within the allowed epochs.
    """

    weights: Params = field(repr=False)
    buffers: Params = field(repr=False)
    epochs: int
    losses: tuple[float, ...]
    converged: bool


def train_alone(  # noqa: PLR0913
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
    """Train a client alone until its loss no longer falls, and return the model with the lowest loss.

    Every ``patience`` epochs, a check compares the loss on all data with a reference. At first, the reference is the
    loss before training. A check shows progress if its loss is below the reference by more than the relative
    ``tolerance``. This loss then becomes the new reference. Training has converged after ten checks without progress.
    After progress, the count of these checks starts again at zero. SGD may leap away from a minimum and come back.
    Therefore, a check whose loss is more than a tenth above the reference is not counted.

    Args:
        model: The model to start from. It is not changed.
        data: The client's samples.
        lr: The learning rate.
        epochs: The largest number of epochs to train.
        batch_size: The number of samples in a step. By default, all samples form one batch.
        loss: The name of a loss in :data:`~leakgauge.federation.losses.LOSSES`. By default, it is cross-entropy for
            classes and mean squared error for a regression.
        mode: The mode of the model during training, ``"train"`` or ``"eval"``.
        adam: Whether to use Adam instead of plain SGD.
        tolerance: The smallest relative decrease of the loss that counts as progress.
        fitted: A share of the first loss. Training also counts as converged if the loss falls to this share. Without
            this rule, a network that can memorise its data would never converge.
        patience: The number of epochs between two checks.
        seed: The seed of the order of samples and of dropout.
    """
    if epochs < 1 or patience < 1:
        raise InvalidInput(f"epochs and patience must be at least 1, not {epochs} and {patience}")
    training = Recipe(lr, batch_size=batch_size, loss=loss, mode=mode).for_client(data, model)
    check_model(model, data, training.loss)
    trainer = Trainer(model, training)
    weights = parameters_of(model)
    inputs, targets = prepared(data, weights)
    state = trainer.start({name: value.clone() for name, value in weights.items()}, buffers_of(model))
    step = _adam(trainer, state, lr) if adam else partial(trainer.step, graph=False)
    draw = generator(seed, "alone")
    progress = _Progress(tolerance, fitted, _loss(trainer, state, inputs, targets), state)
    epoch = 0
    with seeded(seed, "dropout"), trainer.active():
        for epoch in range(1, epochs + 1):
            for rows in draw_order(len(data), int(training.need("batch_size")), 1, draw):
                state = step(state, (inputs[rows], targets[rows]))
            if epoch % patience == 0:
                progress.check(_loss(trainer, state, inputs, targets), state)
                if progress.converged:
                    break
    best = state if epochs < patience else progress.best
    return Alone(best.weights, _settled(trainer, best, inputs), epoch, tuple(progress.losses), progress.converged)


class _Progress:
    """The losses of a training run so far, the weights with the lowest loss, and whether the run has converged."""

    def __init__(self, tolerance: float, fitted: float, loss: float, state: State) -> None:
        self.tolerance, self.fitted = tolerance, fitted
        self.losses = [loss]
        self.mark, self.lowest, self.best = loss, loss, _copied(state)
        self.still, self.converged = 0, False

    def check(self, loss: float, state: State) -> None:
        """Add the loss of the current weights, and decide whether training has converged."""
        self.losses.append(loss)
        if loss < (1 - self.tolerance) * self.mark:
            self.mark, self.still = loss, 0
        elif loss <= (1 + LEAP) * self.mark:
            self.still += 1
        if loss < self.lowest:
            self.lowest, self.best = loss, _copied(state)
        self.converged = self.still == STILL or self.lowest <= self.fitted * self.losses[0]


def _settled(trainer: Trainer, state: State, inputs: Tensor) -> Params:
    """Recompute the batch-norm statistics for the final weights of a training, and return them.

    The statistics that were collected during training belong partly to earlier weights.
    """
    buffers = {name: value.clone() for name, value in state.buffers.items()}
    if buffers and trainer.mode == "train":
        with torch.no_grad(), trainer.active():
            for _ in range(SETTLE):
                functional_call(trainer.model, {**state.weights, **buffers}, (inputs,))
    return buffers


def _adam(trainer: Trainer, first: State, lr: float) -> Callable[[State, Batch], State]:
    """Return a function that takes one step of Adam. Each step changes the weights of ``first`` in place."""
    optimiser = torch.optim.Adam(first.weights.values(), lr=lr)

    def step(state: State, batch: Batch) -> State:
        gradient, buffers = trainer.gradient(state, batch, graph=False)
        for name, value in state.weights.items():
            value.grad = gradient[name]
        optimiser.step()
        return State(state.weights, state.slots, buffers)

    return step


def _copied(state: State) -> State:
    return State({name: value.detach().clone() for name, value in state.weights.items()}, {}, state.buffers)


def _loss(trainer: Trainer, state: State, inputs: Tensor, targets: Tensor) -> float:
    buffers = {name: value.clone() for name, value in state.buffers.items()}
    with torch.no_grad(), trainer.active():
        outputs = functional_call(trainer.model, {**state.weights, **buffers}, (inputs,))
    return float(trainer.loss_function(outputs, targets))


def least_squares_optimum(data: Dataset, *, bias: bool) -> Params:
    """Solve a linear regression directly, and return the optimal ``head.weight`` and ``head.bias``.

    Args:
        data: The client's samples.
        bias: Whether the model has a bias.
    """
    if data.spec.classes is not None:
        raise InvalidInput(f"{data.name} is a classification, whose optimum has no closed form. Use train_alone().")
    inputs = data.spec.normalise(data.inputs.double()).flatten(1)
    if bias:
        inputs = torch.cat((inputs, torch.ones(len(data), 1, dtype=torch.double)), dim=1)
    targets = data.targets.double().reshape(len(data), 1)
    solution = torch.linalg.lstsq(inputs, targets, driver="gelsd").solution[:, 0]
    weights = {"head.weight": solution[: inputs.shape[1] - bias].unsqueeze(0)}
    return {**weights, "head.bias": solution[-1:]} if bias else weights
