"""The work of one client in one round.

A client gets weights, works on its private samples and returns a gradient or new weights. The functions here return
what the server sees (:class:`~leakgauge.core.observation.Observation`) and, separately, the private samples
(:class:`~leakgauge.core.truth.Truth`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining, Mode, Observation
from leakgauge.core.params import Params, buffers_of, parameters_of, subtract
from leakgauge.core.seeding import generator, seeded
from leakgauge.core.truth import Truth
from leakgauge.data.dataset import Dataset
from leakgauge.federation.client_recipe import Recipe, of_one_gradient
from leakgauge.federation.defence import Defence, Protection, Trained, check_defences, recipe_with, training_of
from leakgauge.federation.exposure import Exchanged, Exposure, architecture_of, observe
from leakgauge.federation.losses import Loss
from leakgauge.federation.model_check import check_model, explaining, prepared
from leakgauge.federation.training import Batch, Trainer, draw_order, local_sgd


def fedsgd(  # noqa: PLR0913
    model: nn.Module,
    data: Dataset,
    *,
    loss: str | Loss | None = None,
    mode: Mode | None = None,
    recipe: LocalTraining | None = None,
    share_statistics: bool = True,
    defences: Defence | Iterable[Defence] = (),
    granted: Iterable[str] = (),
    hidden: Iterable[str] = (),
    knows_defence: bool = False,
    client: str | None = None,
    round: int = 0,
    participations: int = 1,
    seed: int = 0,
) -> tuple[Observation, Truth]:
    """Return the message of a client that sends the gradient of all its samples as one batch (FedSGD).

    Args:
        model: The global model. It is not changed.
        data: The client's samples.
        loss: The name of a loss in :data:`~leakgauge.federation.losses.LOSSES`, ``"module:function"``, or a function of
            outputs and targets. By default, it is cross-entropy for classes (binary if the model has one output) and
            mean squared error for a regression.
        mode: The mode of the client's model, ``"train"`` (the default) or ``"eval"``.
        recipe: Further settings of the training, such as the optimiser and the schedule. The arguments above override
            these settings.
        share_statistics: Whether the server gets batch-norm statistics.
        defences: The client's defences (:mod:`leakgauge.federation.defences`), in the order in which they are applied.
        granted: The additional knowledge that the attacker is given: any of ``"labels"``, ``"label_counts"`` and
            ``"label_batches"`` (the labels of each batch).
        hidden: The training settings that the attacker does not know, such as ``"lr"`` or ``"samples"``.
        knows_defence: Whether the attacker knows the client's defences.
        client: The client's name. By default, the name of the data.
        round: The index of the round.
        participations: The number of rounds in which the client takes part overall. A defence with a privacy budget
            spreads the budget over these rounds.
        seed: The seed of the client's random numbers.

    Returns:
        What the server sees, and the client's samples for scoring.
    """
    exposure = Exposure.of(granted, hidden, knows_defence, share_statistics)
    exposure.check(data)
    training = Recipe(loss=loss, mode=mode, base=of_one_gradient(recipe)).for_client(data, model)
    chain = check_defences(defences, model, training.mode)
    if recipe_with(chain, training) != training:
        raise InvalidInput("FedSGD has no local training, so its batches and epochs cannot be changed. Use fedavg().")
    check_model(model, data, training.loss)
    start = Trained((), parameters_of(model), buffers_of(model))
    protection = Protection(chain, seed, data.spec.classes)
    gradient, buffers = defended_gradient(
        model, prepared(data, start.weights), training, start, protection, participations, seed
    )
    order = (torch.arange(len(data)),)
    exchanged = Exchanged(start.weights, start.buffers, buffers, gradient=gradient, order=order)
    observation = observe(
        architecture_of(model, share_statistics),
        data,
        training,
        exchanged,
        exposure,
        defences=chain,
        client=client or data.name,
        round=round,
    )
    return observation, truth_of(data, order)


def fedavg(  # noqa: PLR0913
    model: nn.Module,
    data: Dataset,
    *,
    lr: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    loss: str | Loss | None = None,
    mode: Mode | None = None,
    recipe: LocalTraining | None = None,
    share_statistics: bool = True,
    defences: Defence | Iterable[Defence] = (),
    granted: Iterable[str] = (),
    hidden: Iterable[str] = (),
    knows_defence: bool = False,
    client: str | None = None,
    round: int = 0,
    participations: int = 1,
    seed: int = 0,
) -> tuple[Observation, Truth]:
    """Return the message of a client that trains and sends its weights (FedAvg, McMahan et al. 2017, algorithm 1).

    Every epoch uses a new random order of the samples. The last batch of an epoch may be smaller.

    Args:
        model: The global model. It is not changed.
        data: The client's samples.
        lr: The learning rate.
        epochs: The number of passes over the client's samples, by default 1.
        batch_size: The number of samples in a batch. By default, all samples form one batch.
        momentum: The momentum of SGD, by default 0.
        weight_decay: The weight decay, by default 0.
        loss: The name of a loss in :data:`~leakgauge.federation.losses.LOSSES`, ``"module:function"``, or a function of
            outputs and targets. By default, it is cross-entropy for classes (binary if the model has one output) and
            mean squared error for a regression.
        mode: The mode of the client's model, ``"train"`` (the default) or ``"eval"``.
        recipe: Further settings of the training, such as the optimiser and the schedule. The arguments above override
            these settings.
        share_statistics: Whether the server gets batch-norm statistics.
        defences: The client's defences (:mod:`leakgauge.federation.defences`), in the order in which they are applied.
        granted: The additional knowledge that the attacker is given: any of ``"labels"``, ``"label_counts"`` and
            ``"label_batches"`` (the labels of each batch).
        hidden: The training settings that the attacker does not know, such as ``"lr"`` or ``"samples"``.
        knows_defence: Whether the attacker knows the client's defences.
        client: The client's name. By default, the name of the data.
        round: The index of the round.
        participations: The number of rounds in which the client takes part overall. A defence with a privacy budget
            spreads the budget over these rounds.
        seed: The seed of the client's random numbers, including the order of its samples.

    Returns:
        What the server sees, and the client's samples for scoring.
    """
    exposure = Exposure.of(granted, hidden, knows_defence, share_statistics)
    exposure.check(data)
    training = Recipe(lr, epochs, batch_size, momentum, weight_decay, loss, mode, recipe).for_client(data, model)
    if training.lr is None:
        raise InvalidInput("local training needs a learning rate. Pass lr=..., or a recipe with lr.")
    chain = check_defences(defences, model, training.mode)
    training = recipe_with(chain, training)
    check_model(model, data, training.loss)
    check_training(chain, model, training, exposure)
    start = Trained((), parameters_of(model), buffers_of(model))
    protection = Protection(chain, seed, data.spec.classes)
    trained = train_client(model, prepared(data, start.weights), training, start, protection, participations, seed)
    exchanged = Exchanged(start.weights, start.buffers, trained.buffers, returned=trained.weights, order=trained.order)
    observation = observe(
        architecture_of(model, share_statistics),
        data,
        training,
        exchanged,
        exposure,
        defences=chain,
        client=client or data.name,
        round=round,
    )
    return observation, truth_of(data, trained.order)


def check_training(defences: Sequence[Defence], model: nn.Module, training: LocalTraining, exposure: Exposure) -> None:
    """Raise an error if the defence that replaces local training, if any, cannot be used.

    It must fit the model and the training settings. If the attacker is given the labels of each batch, the defence must
    draw batches of a fixed size.
    """
    defence = training_of(defences)
    if defence is not None:
        defence.check(model, training)
        exposure.check_order(defence)


def defended_gradient(
    model: nn.Module,
    samples: Batch,
    training: LocalTraining,
    start: Trained,
    protection: Protection,
    participations: int,
    seed: int,
) -> tuple[Params, Params]:
    """Return the gradient that a client sends after its defences, and the client's buffers after the forward pass."""
    trainer = Trainer(model, training, protection=protection)
    state = trainer.start(start.weights, start.buffers)
    defence = training_of(protection.defences)
    with explaining(), seeded(seed, "dropout"), trainer.active():
        if defence is None:
            gradient, buffers = trainer.gradient(state, samples, graph=False)
            gradient = trainer.rule.completed(gradient, state.weights, state.anchor)
        else:
            defence.check(model, training)
            batch, buffers = protection.on_batch(samples), state.buffers
            gradient = defence.gradient(model, batch, training, start, participations, seed)
    return protection.on_update(gradient), buffers


def train_client(
    model: nn.Module,
    samples: Batch,
    training: LocalTraining,
    start: Trained,
    protection: Protection,
    participations: int,
    seed: int,
) -> Trained:
    """Train one client with its defences.

    Args:
        model: The architecture.
        samples: All of the client's samples, from :func:`prepared`.
        training: The settings of the client's training.
        start: The weights and buffers to start from.
        protection: The client's defences.
        participations: The number of rounds in which the client takes part overall.
        seed: The seed of the client's random numbers.

    Returns:
        The row indices of the samples in each local step, and the weights and buffers that the client returns.
    """
    defence = training_of(protection.defences)
    with explaining(), seeded(seed, "dropout"):
        if defence is not None:
            trained = defence.train(model, samples, training, start, participations, seed, protection.on_batch)
        else:
            inputs, targets = samples
            order = order_of(training, seed)
            batches = ((inputs[rows], targets[rows]) for rows in order)
            weights, buffers = local_sgd(
                model, start.weights, batches, training, buffers=start.buffers, protection=protection
            )
            trained = Trained(order, weights, buffers)
    return replace(trained, weights=protected(protection, start.weights, trained.weights))


def protected(protection: Protection, sent: Params, returned: Params) -> Params:
    """Apply the client's defences to its update, and return the weights that the client then sends."""
    update = subtract(sent, returned)
    changed = protection.on_update(update)
    return returned if changed is update else subtract(sent, changed)


def order_of(training: LocalTraining, seed: int) -> tuple[Tensor, ...]:
    """Return the indices of the samples in each local step of a client. The client's seed determines them."""
    samples, size, epochs = (int(training.need(name)) for name in ("samples", "batch_size", "epochs"))
    return draw_order(samples, size, epochs, generator(seed, "order"))[: training.local_steps]


def truth_of(data: Dataset, order: tuple[Tensor, ...]) -> Truth:
    """Return a client's samples, and other samples of the same dataset, from which chance levels are computed."""
    others = data.others()
    return Truth(
        data.inputs,
        data.targets,
        data.spec,
        order,
        None if others is None else others.inputs,
        None if others is None else others.targets,
    )
