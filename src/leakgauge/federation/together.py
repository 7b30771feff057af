"""Training of the clients of one round, one by one or together in vectorised steps.

Clients with equal batch shapes can train together. Their weights are stacked, and each step is one vectorised call.
This is faster for small models, because an operation of a small model takes longer to start than to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import Params
from leakgauge.core.seeding import seeded
from leakgauge.federation.client import order_of, protected, train_client
from leakgauge.federation.defence import Defence, Protection, Trained
from leakgauge.federation.model_check import explaining
from leakgauge.federation.training import Batch, State, Trainer

#: The tensors of an optimiser, and the weights, these tensors and the buffers after a step.
Slots = dict[str, Params]
Stepped = tuple[Params, Slots, Params]
#: The number of parameters below which training clients together is faster (measured on two cores).
TOGETHER_BELOW = 200_000


class CannotTrainTogether(InvalidInput):
    """The error for a model that cannot be vectorised, for example because its code branches on a tensor's value."""


class Answer(NamedTuple):
    """The weights and buffers that a client returns."""

    weights: Params
    buffers: Params


@dataclass(frozen=True, eq=False)
class Shared:
    """The settings that all clients of all rounds share.

    Args:
        model: The architecture.
        defences: The defences of every client.
        classes: The number of classes, or ``None`` for a regression.
        participations: The number of rounds over which a defence spreads its privacy budget.
    """

    model: nn.Module
    defences: tuple[Defence, ...]
    classes: int | None
    participations: int

    def protection(self, seed: int) -> Protection:
        """Return the defences of one client, with random generators from the client's seed."""
        return Protection(self.defences, seed, self.classes)


@dataclass(frozen=True, eq=False)
class Job:
    """The work of one client in one round.

    Args:
        samples: The client's normalised samples and their targets.
        training: The settings of the client's training.
        buffers: The batch-norm statistics to start from.
        seed: The seed of the client's random numbers in this round.
    """

    samples: Batch
    training: LocalTraining
    buffers: Params
    seed: int


def pays_off(weights: Params, protection: Protection) -> bool:
    """Return whether training clients together is faster than training them one by one.

    Training together is not faster for large models. It is also not faster if a defence needs the gradient of each
    sample, because the gradients of all clients would be in memory at once. If a defence acts on each step, clients
    cannot train together.
    """
    small = sum(value.numel() for value in weights.values()) < TOGETHER_BELOW
    return small and not protection.needs_sample_gradients and not protection.acts_on_steps


def train_one_by_one(shared: Shared, jobs: Sequence[Job], weights: Params) -> list[Answer]:
    """Train the clients one after another. Each client starts from ``weights``."""
    answers = []
    for job in jobs:
        start = Trained((), weights, job.buffers)
        protection = shared.protection(job.seed)
        trained = train_client(
            shared.model, job.samples, job.training, start, protection, shared.participations, job.seed
        )
        answers.append(Answer(trained.weights, trained.buffers))
    return answers


def train_together(shared: Shared, jobs: Sequence[Job], weights: Params) -> list[Answer]:
    """Train clients with equal training settings in vectorised steps, and all other clients one by one."""
    groups: dict[LocalTraining, list[int]] = {}
    for position, job in enumerate(jobs):
        groups.setdefault(job.training, []).append(position)
    answers: dict[int, Answer] = {}
    for positions in groups.values():
        group = [jobs[position] for position in positions]
        train = train_one_by_one if len(group) == 1 else _train_group
        answers.update(zip(positions, train(shared, group, weights), strict=True))
    return [answers[position] for position in range(len(jobs))]


def _train_group(shared: Shared, jobs: Sequence[Job], weights: Params) -> list[Answer]:
    """Train clients with equal training settings in vectorised steps."""
    training = jobs[0].training
    trainer = Trainer(shared.model, training, functional=True)
    orders = [order_of(training, job.seed) for job in jobs]
    protections = [shared.protection(job.seed) for job in jobs]
    state = trainer.start(
        {name: value.expand(len(jobs), *value.shape) for name, value in weights.items()},
        {name: torch.stack([job.buffers[name] for job in jobs]) for name in jobs[0].buffers},
    )
    with explaining():
        state = _trained(trainer, state, jobs, orders, protections)
    return [
        Answer(protected(protection, weights, _part(state.weights, index)), _part(state.buffers, index))
        for index, protection in enumerate(protections)
    ]


def _trained(
    trainer: Trainer,
    state: State,
    jobs: Sequence[Job],
    orders: Sequence[tuple[Tensor, ...]],
    protections: Sequence[Protection],
) -> State:
    """Return the state of all clients after all their steps."""
    step = _defended_step if protections[0].needs_sample_gradients else _plain_step
    try:
        with seeded(jobs[0].seed, "dropout"), torch.no_grad(), trainer.active():
            for rows in zip(*orders, strict=True):
                batches = [
                    protection.on_batch((job.samples[0][chosen], job.samples[1][chosen]))
                    for job, chosen, protection in zip(jobs, rows, protections, strict=True)
                ]
                inputs, targets = (torch.stack([batch[side] for batch in batches]) for side in (0, 1))
                state = step(trainer, state, (inputs, targets), protections)
    except RuntimeError as problem:
        first_line = str(problem).partition("\n")[0]
        raise CannotTrainTogether(
            f"these clients cannot train together ({first_line}). Use together=False."
        ) from problem
    return state


def _plain_step(trainer: Trainer, state: State, batch: Batch, _: Sequence[Protection]) -> State:
    """Return the state after one step of all clients at once."""

    def step(weights: Params, slots: Slots, buffers: Params, anchor: Params, batch: Batch) -> Stepped:
        after = trainer.step(State(weights, slots, buffers, anchor, state.batches), batch, graph=True)
        return after.weights, after.slots, after.buffers

    every_client = torch.func.vmap(step, randomness="different")
    stepped = every_client(state.weights, state.slots, state.buffers, state.anchor, batch)
    return State(*stepped, state.anchor, state.batches + 1)


def _defended_step(trainer: Trainer, state: State, batch: Batch, protections: Sequence[Protection]) -> State:
    """Return the state after one step of all clients at once, with defences that change single samples' gradients.

    The gradients of all samples are computed together. Then the defences of each client change the gradients of this
    client.
    """

    def of_samples(weights: Params, buffers: Params, batch: Batch) -> tuple[Params, Params]:
        return trainer.sample_gradients(State(weights, {}, buffers), batch)

    def descend(weights: Params, slots: Slots, buffers: Params, anchor: Params, gradient: Params) -> Stepped:
        after = trainer.descend(State(weights, slots, buffers, anchor, state.batches), gradient, buffers)
        return after.weights, after.slots, after.buffers

    gradients, buffers = torch.func.vmap(of_samples, randomness="different")(state.weights, state.buffers, batch)
    means = [
        protection.mean_gradient({name: value[index] for name, value in gradients.items()})
        for index, protection in enumerate(protections)
    ]
    together = {name: torch.stack([mean[name] for mean in means]) for name in means[0]}
    stepped = torch.func.vmap(descend)(state.weights, state.slots, buffers, state.anchor, together)
    return State(*stepped, state.anchor, state.batches + 1)


def _part(stacked: Params, index: int) -> Params:
    """Return copies of one client's tensors. A view would keep the tensors of all clients in memory."""
    return {name: value[index].clone() for name, value in stacked.items()}
