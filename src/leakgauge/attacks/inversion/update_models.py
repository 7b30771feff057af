r"""The attacker's models of the client, which predict the update that dummy samples would cause.

Every prediction estimates :meth:`Observation.summed_gradient`, which is the sum of the client's gradients over its
local steps. With :math:`\theta^s` the sent weights, :math:`\theta^c` the returned weights and :math:`U` local steps,
the models and the cost of one prediction are:

======================  ==============================================================  ====================
``OneBatch``            :math:`U\,\nabla\ell(x;\theta^s)`, one gradient of all samples    one large step
                        (exact for FedSGD; AGIC, equation 4)
``Surrogate``           :math:`U\,\nabla\ell(x;\alpha\theta^s+(1-\alpha)\theta^c)`, with    one large step
                        :math:`\alpha` learned (SME, Zhu et al., ICML 2023)
``FullSimulation``      the client's local training on the dummy samples                all local steps
                        (Geiping et al. 2020; DLF, section 4.3)
``EpochInterpolation``  one epoch of local training, from a point between the weights   steps of one epoch
                        (AWA, equations 19 to 21)
======================  ==============================================================  ====================

With :mod:`leakgauge.attacks.inversion.mixed_precision`, any of these models has products in bfloat16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.attacks.inversion.labels import rows_of_first_epoch
from leakgauge.attacks.requirements import Simulation, simulation_of
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.core.local_training import OF_ONE_GRADIENT, LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.params import Params, elementwise, scale, subtract
from leakgauge.core.schedules import CONSTANT
from leakgauge.federation.training import Gradients, State, Trainer

#: A function ``predict(inputs, targets, **extra) -> update``, with normalised inputs.
Predict = Callable[..., Params]


@dataclass(frozen=True, eq=False)
class ClientModel:
    """The attacker's model of one client, called as ``client(inputs, targets, **extra)``.

    Args:
        predict: The function that predicts the update.
        copies: The number of copies of the client's samples that the inputs hold. If every epoch has its own dummy
            samples, there is one copy for each epoch. The copies follow one another.
        batches: The number of batches in the inputs, if the inputs are divided into batches of the client's size.
        extra: The initial values of further variables that the attack optimises, apart from the samples.
        epoch_labels: Whether the targets may hold the labels of every epoch, one epoch after another. Otherwise the
            targets hold the labels of the first epoch.
    """

    predict: Predict
    copies: int = 1
    batches: int = 1
    extra: Params = field(default_factory=dict)
    epoch_labels: bool = False

    def __call__(self, inputs: Tensor, targets: Tensor, **extra: Tensor) -> Params:
        """Return the update that these samples would cause.

        Args:
            inputs: Normalised inputs.
            targets: The labels or regression targets of the inputs.
            extra: The values of the variables that are optimised in addition to the samples.
        """
        if not self.epoch_labels:
            targets = targets[: len(inputs) // self.copies]
        return self.predict(inputs, targets, **extra)


class UpdateModel(Protocol):
    """A rule that predicts a client's update from dummy samples."""

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Return the attacker's model of one client, which predicts updates.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            functional: Whether predictions must run under ``torch.func.vmap``.
        """
        ...


@dataclass(frozen=True)
class OneBatch:
    """A prediction from one gradient of all samples at the server's weights, times the number of gradients applied.

    The prediction is exact for FedSGD. For many local steps it is AGIC's one-batch approximation (equation 4), which
    assumes that the weights hardly move between the steps. The prediction costs the same for any number of steps. It
    does not depend on how the samples are divided into batches.

    For an Adam client, every gradient is normalised as in Adam's first step (:mod:`leakgauge.federation.update_rules`).
    """

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Return the attacker's model of one client, which predicts updates.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            functional: Whether predictions must run under ``torch.func.vmap``.
        """
        trainer = simulator(observation, observation.training, functional=functional)
        state = trainer.start(observation.sent, observation.model_buffers())
        one_step = _one_step(trainer, observation)

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            return one_step(state, inputs, targets)

        return ClientModel(predict, batches=_batches(observation, 1))


@dataclass(frozen=True)
class Surrogate:
    """A prediction from one gradient of all samples at a learned point between sent and returned weights (SME).

    For a FedSGD observation, the prediction is that of :class:`OneBatch`.

    Args:
        position: The initial position of this point. 1 is the sent weights, and 0 is the returned weights.
    """

    position: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.position <= 1:
            raise InvalidInput(f"the surrogate's position must lie in [0, 1], not {self.position}")

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Return the attacker's model of one client, which predicts updates.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            functional: Whether predictions must run under ``torch.func.vmap``.
        """
        if observation.returned is None:
            return OneBatch().begin(observation, functional=functional)
        sent, returned = observation.sent, observation.returned
        trainer = simulator(observation, observation.training, functional=functional)
        start = trainer.start(sent, observation.model_buffers())
        one_step = _one_step(trainer, observation)

        def predict(inputs: Tensor, targets: Tensor, position: Tensor) -> Params:
            place = position.clamp(0, 1)
            between = elementwise(lambda first, last: last + place * (first - last), sent, returned)
            return one_step(replace(start, weights=between), inputs, targets)

        like = next(iter(sent.values()))
        extra = {"position": torch.tensor(self.position, dtype=like.dtype, device=like.device)}
        return ClientModel(predict, batches=_batches(observation, 1), extra=extra)


@dataclass(frozen=True)
class FullSimulation:
    """A simulation of the client's whole local training on the dummy samples.

    For a FedSGD observation, or for one local step, the prediction is that of :class:`OneBatch`. Unknown settings such
    as momentum and weight decay are taken as zero. An unknown optimiser is guessed from the update.

    Args:
        per_epoch: Whether every epoch has its own copy of the dummy samples, because the client draws a new order in
            each epoch (DLF). Otherwise all epochs share the same dummy samples (Geiping et al.). If the labels of each
            epoch are known, each epoch takes the shared samples in an order that agrees with its labels.
        one_batch: Whether each epoch is one step on all samples (DLF's baseline FedSGD-Epoch). The learning rate of
            this step is the sum of the learning rates of the epoch's steps.
        new_orders: Whether each epoch takes the samples in a different random order. The orders are drawn once. The
            client also uses different orders, so the prediction is nearer to the client's update than with one order
            for all epochs. If every epoch has its own copy of the dummy samples, all copies are stored in the same
            order.
        gradients: The way to differentiate through the training (see :mod:`leakgauge.federation.training`). ``"graph"``
            is fast and ``"adjoint"`` needs little memory. By default, the graph is used up to ``graph_limit``, and the
            adjoint above this limit.
        graph_limit: The largest number of weights, counted over all steps, for which the graph is used. The default
            needs some 1.5 GiB.
    """

    per_epoch: bool = False
    one_batch: bool = False
    new_orders: bool = False
    gradients: Gradients | None = None
    graph_limit: int = 200_000_000

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Return the attacker's model of one client, which predicts updates.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            functional: Whether predictions must run under ``torch.func.vmap``.
        """
        if observation.kind == "gradient":
            return OneBatch().begin(observation, functional=functional)
        training, sent = observation.training, observation.sent
        lr, epochs, samples = training.need("lr"), int(training.need("epochs")), int(training.need("samples"))
        sizes = list(training.batch_sizes)
        if epochs * len(sizes) == 1:  # one gradient, which avoids the rounding of the weights
            return OneBatch().begin(observation, functional=functional)
        if self.one_batch:
            _need_whole_epochs(training)
            training, sizes = _one_step_per_epoch(training), [samples]
        trainer = simulator(observation, training, functional=functional)
        buffers = observation.model_buffers()
        numbers = epochs * len(sizes) * sum(value.numel() for value in sent.values())
        chosen = self.gradients or ("graph" if numbers <= self.graph_limit else "adjoint")
        copies = epochs if self.per_epoch else 1
        drawn = torch.stack([torch.randperm(samples) for _ in range(epochs)]) if self.new_orders else None

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            if drawn is not None:
                known = len(targets) > samples
                rows = rows_of_first_epoch(targets.unflatten(0, (epochs, -1))) if known else drawn.to(targets.device)
                targets = targets if known else targets[rows.flatten()]
                first = samples * torch.arange(epochs, device=rows.device) if self.per_epoch else 0 * rows[:, 0]
                inputs = inputs[(rows + first[:, None]).flatten()]
            elif len(targets) == samples:
                targets = torch.cat([targets] * copies)
            if len(targets) > len(inputs):  # shared variables with the labels of every epoch
                inputs = inputs[rows_of_first_epoch(targets.unflatten(0, (epochs, -1))).flatten()]
            passes = len(inputs) // samples
            batches = list(zip(inputs.split(sizes * passes), targets.split(sizes * passes), strict=True))
            start = trainer.start(sent, buffers)
            taken = (batches * (epochs // passes))[: training.local_steps]
            state = trainer.run(start, taken, "graph" if functional else chosen)
            return scale(subtract(sent, state.weights), 1 / lr)

        return ClientModel(predict, copies, _batches(observation, copies), epoch_labels=True)

    def simulation(self, training: LocalTraining, weights: int) -> Simulation:
        """Return the size of one prediction.

        Args:
            training: The settings of the client's training. The numbers of samples, batches and epochs must be known.
            weights: The number of weights of the model.
        """
        limits = {None: self.graph_limit, "graph": sys.maxsize}
        if self.one_batch:
            training = replace(training, batch_size=training.samples, accumulation=1, local_steps=None)
        limit = limits.get(self.gradients, 0)
        return simulation_of(training, weights, copies=self.per_epoch, graph_limit=limit)


@dataclass(frozen=True)
class EpochInterpolation:
    r"""A simulation of one of the client's epochs, from interpolated weights (AWA, section 4.1).

    .. math:: \tilde\theta_e = \theta^s + \tfrac{e}{E}\,(\theta^c - \theta^s), \qquad
              \Delta\tilde\theta_e = \tilde\theta_e - \tilde\theta_{e-1} = \tfrac1E\,(\theta^c - \theta^s)
              \qquad (19, 20)

    Here :math:`\theta^s` are the sent weights, :math:`\theta^c` the returned weights and :math:`E` the number of
    epochs. The attacker cannot know the order of the samples in the other epochs. To simulate a single epoch, this
    order is not needed. With only one epoch, or only one batch in each epoch (AWA's scenarios 1 to 3), the order does
    not matter. The whole training is then simulated, as in :class:`FullSimulation`. The labels are divided into batches
    in their given order.

    Args:
        epoch: The attacked epoch, from 1 to the number of epochs E.
    """

    epoch: int = 1

    def __post_init__(self) -> None:
        whole_number("epoch", self.epoch)

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Return the attacker's model of one client, which predicts updates.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            functional: Whether predictions must run under ``torch.func.vmap``.
        """
        training = observation.training
        if observation.kind == "gradient":
            return OneBatch().begin(observation, functional=functional)
        epochs, sizes, lr = int(training.need("epochs")), list(training.batch_sizes), training.need("lr")
        if self.epoch > epochs:
            raise InvalidInput(f"epoch {self.epoch} cannot be attacked, because the client trained for {epochs}")
        if epochs == 1 or len(sizes) == 1:
            return FullSimulation().begin(observation, functional=functional)
        _need_whole_epochs(training)
        assert observation.returned is not None
        passed, share = _shares(training, self.epoch)
        start = elementwise(lambda a, b: a + passed * (b - a), observation.sent, observation.returned)
        trainer = simulator(observation, training, functional=functional)
        buffers, before = observation.model_buffers(), (self.epoch - 1) * len(sizes)

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            batches = zip(inputs.split(sizes), targets.split(sizes), strict=True)
            first = trainer.start(start, buffers, anchor=observation.sent, batches=before)
            state = trainer.run(first, batches, "graph")
            return scale(subtract(start, state.weights), share / lr)

        return ClientModel(predict, batches=len(sizes))

    def simulation(self, training: LocalTraining, weights: int) -> Simulation:
        """Return the size of one prediction, which is a simulation of one epoch.

        Args:
            training: The settings of the client's training. The numbers of samples, batches and epochs must be known.
            weights: The number of weights of the model.
        """
        return simulation_of(replace(training, epochs=1), weights, copies=False, graph_limit=sys.maxsize)


def _one_step(trainer: Trainer, observation: Observation) -> Callable[[State, Tensor, Tensor], Params]:
    """Return a function that predicts an update as one gradient times the number of gradients that the client applied.

    If the number of applied gradients is unknown, the gradient is multiplied by 1. Only the direction of the prediction
    matters in this case.
    """
    training = observation.training
    unknown = None in (training.epochs, training.batch_size, training.samples)
    factor = 1.0 if observation.kind == "gradient" or unknown else training.applied_gradients

    def step(state: State, inputs: Tensor, targets: Tensor) -> Params:
        with trainer.active():
            update = trainer.repeated_step(state, (inputs, targets))
        return update if factor == 1 else scale(update, factor)

    return step


def simulator(observation: Observation, training: LocalTraining, *, functional: bool) -> Trainer:
    """Return a trainer with which an attacker simulates a client's local steps.

    An unknown optimiser is guessed from the update. For a gradient (FedSGD), plain SGD is simulated.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        training: The known settings of the client's training.
        functional: Whether steps must run under ``torch.func.vmap``.
    """
    if observation.kind == "gradient":
        training = replace(
            LocalTraining(), **{name: getattr(training, name) for name in OF_ONE_GRADIENT}, lr=training.lr
        )
    elif training.optimiser is None:
        training = replace(training, optimiser=optimiser_of(observation))
    return Trainer(observation.model, training, functional=functional, as_attacker=True)


def _need_whole_epochs(training: LocalTraining) -> None:
    """Raise an error if the client stops within an epoch."""
    if not training.finishes_epochs:
        raise InvalidInput(
            f"this attack simulates whole epochs, but the client stops after {training.local_steps} local steps, "
            "within an epoch. Use an attack that simulates every step, such as inverting_gradients."
        )


def _one_step_per_epoch(training: LocalTraining) -> LocalTraining:
    """Return training settings in which each epoch is one step on all samples.

    The learning rate of this step is the sum of the learning rates of the epoch's steps.
    """
    factors, steps = torch.tensor(training.factors, dtype=torch.double), len(training.batches_of_steps)
    lengths = factors.unflatten(0, (-1, steps)).mean(1).tolist()
    schedule = training.schedule if training.schedule in (None, CONSTANT) else tuple(lengths)
    return replace(
        training,
        lr=training.need("lr") * steps,
        batch_size=training.samples,
        schedule=schedule,
        accumulation=1,
        local_steps=None,
    )


def _shares(training: LocalTraining, epoch: int) -> tuple[float, float]:
    """Return two numbers that describe which part of the client's update belongs to an epoch.

    The first number is the share of the whole update that happens before the epoch. The second number is the size of
    the whole update, divided by the size of the epoch's update.

    The update of an epoch is assumed to be proportional to the sum of the epoch's learning rates. Epochs count from 1.
    """
    epochs, per_epoch = int(training.need("epochs")), len(training.batches_of_steps)
    if training.schedule in (None, CONSTANT):
        return (epoch - 1) / epochs, epochs
    factors = training.factors
    before, own = sum(factors[: (epoch - 1) * per_epoch]), sum(factors[(epoch - 1) * per_epoch : epoch * per_epoch])
    if own == 0:
        raise InvalidInput(f"epoch {epoch} cannot be attacked, because the schedule sets its learning rate to 0")
    return before / sum(factors), sum(factors) / own


def _batches(observation: Observation, copies: int) -> int:
    try:
        return copies * len(observation.training.batch_sizes)
    except MissingKnowledge:
        return copies
