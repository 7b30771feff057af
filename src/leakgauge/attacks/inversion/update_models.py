r"""How the attacker models what the client did: from dummy samples to the update they would have caused.

Every prediction is on the scale of :meth:`Observation.summed_gradient`: the sum of the client's gradients
over its local steps. With :math:`\theta^s` sent, :math:`\theta^c` returned, :math:`U` local steps:

======================  ==============================================================  ====================
``OneBatch``            :math:`U\,\nabla\ell(x;\theta^s)`, one gradient of all samples    one large step
                        (exact for FedSGD; AGIC, equation 4)
``Surrogate``           :math:`U\,\nabla\ell(x;\alpha\theta^s+(1-\alpha)\theta^c)`, with    one large step
                        :math:`\alpha` learned (SME, Zhu et al., ICML 2023)
``FullSimulation``      the client's local training on the dummies, differentiated      all local steps
                        through (Geiping et al. 2020; DLF, section 4.3)
``EpochInterpolation``  one epoch of it, from a point between the two weights           steps of one epoch
                        (AWA, equations 19 to 21)
======================  ==============================================================  ====================

``MixedPrecision`` is any of them whose products are of numbers half as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.attacks.inversion.labels import rows_of_first_epoch
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, elementwise, scale, subtract
from leakgauge.federation.training import Gradients, State, Trainer, local_sgd

#: ``predict(inputs, targets, **extra) -> update``, with inputs on the model's side of the boundary.
Predict = Callable[..., Params]


@dataclass(frozen=True, eq=False)
class ClientModel:
    """The model of one client, ready to predict: ``client(inputs, targets, **extra)``.

    ``inputs`` are ``copies`` times the client's samples, one copy after another (one an epoch, where epochs
    have their own). ``batches`` is how many batches of the client's size that makes. ``extra`` are further
    variables to optimise, at their start. ``epoch_labels`` says whether ``targets`` may be those of every epoch, one
    after another; other models are given the first epoch's.
    """

    predict: Predict
    copies: int = 1
    batches: int = 1
    extra: Params = field(default_factory=dict)
    epoch_labels: bool = False

    def __call__(self, inputs: Tensor, targets: Tensor, **extra: Tensor) -> Params:
        """The update that these samples would have caused."""
        if not self.epoch_labels:
            targets = targets[: len(inputs) // self.copies]
        return self.predict(inputs, targets, **extra)


class UpdateModel(Protocol):
    """A model of the client."""

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation; ``functional`` predictions may run under ``torch.func.vmap``."""
        ...


@dataclass(frozen=True)
class OneBatch:
    """One gradient of all samples at the server's weights, as often as the client applied one.

    Exact for FedSGD. For many local steps this is AGIC's one-batch approximation (equation 4): the weights hardly
    move between them. It costs the same whatever their number, and does not ask which sample is in which batch.
    """

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation."""
        trainer = Trainer(observation.model, observation.training, functional=functional)
        state = trainer.start(observation.sent, observation.model_buffers())
        one_step = _one_step(trainer, observation)

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            return one_step(state, inputs, targets)

        return ClientModel(predict, batches=_batches(observation, 1))


@dataclass(frozen=True)
class Surrogate:
    """One gradient of all samples at a point between the two weights, whose place is learned (SME).

    ``position`` is where it starts: 1 at the weights that were sent, 0 at those that came back. For a FedSGD
    observation this is :class:`OneBatch`.
    """

    position: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.position <= 1:
            raise InvalidInput(f"the surrogate's position must lie in [0, 1], not {self.position}")

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation."""
        if observation.returned is None:
            return OneBatch().begin(observation, functional=functional)
        sent, returned = observation.sent, observation.returned
        trainer = Trainer(observation.model, observation.training, functional=functional)
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
    """The client's local training on the dummy samples.

    ``per_epoch`` gives every epoch its own variables (DLF), for the client drew a new order in each; otherwise
    all epochs share them (Geiping et al.), in orders that agree with the labels where each epoch's are known.
    ``new_orders`` takes the samples in another random order in each epoch, drawn once: as the client does, though in
    orders of its own, and nearer to its update than one order for all epochs. Variables of different epochs then lie
    in the same order, sample by sample. ``one_batch`` takes each epoch as one step on all samples, as long as the
    epoch's steps together (DLF's baseline FedSGD-Epoch). For a FedSGD observation, or one local step,
    this is :class:`OneBatch`. Momentum and weight decay that are unknown are taken to be zero.

    ``gradients`` is how to differentiate through it (see :mod:`leakgauge.federation.training`): ``"graph"`` is
    fast, ``"adjoint"`` needs little memory; ``None`` takes the graph up to ``graph_limit`` numbers in all the
    weights of all steps (some 1.5 GiB), then the adjoint.
    """

    per_epoch: bool = False
    one_batch: bool = False
    new_orders: bool = False
    gradients: Gradients | None = None
    graph_limit: int = 200_000_000

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation."""
        if observation.kind == "gradient":
            return OneBatch().begin(observation, functional=functional)
        training, sent = observation.training, observation.sent
        lr, epochs, samples = training.need("lr"), int(training.need("epochs")), int(training.need("samples"))
        sizes = list(training.batch_sizes)
        if epochs * len(sizes) == 1:  # its gradient, without the detour over the weights and its rounding
            return OneBatch().begin(observation, functional=functional)
        if self.one_batch:
            training, sizes = replace(training, lr=lr * len(sizes)), [samples]
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
            if len(targets) > len(inputs):  # shared variables, and the labels of every epoch
                inputs = inputs[rows_of_first_epoch(targets.unflatten(0, (epochs, -1))).flatten()]
            passes = len(inputs) // samples
            batches = list(zip(inputs.split(sizes * passes), targets.split(sizes * passes), strict=True))
            weights, _ = local_sgd(
                observation.model,
                sent,
                batches * (epochs // passes),
                training,
                buffers=buffers,
                gradients="graph" if functional else chosen,
                functional=functional,
            )
            return scale(subtract(sent, weights), 1 / lr)

        return ClientModel(predict, copies, _batches(observation, copies), epoch_labels=True)


@dataclass(frozen=True)
class EpochInterpolation:
    r"""One of the client's epochs, from the point that interpolation gives for its start (AWA, section 4.1):

    .. math:: \tilde\theta_e = \theta^s + \tfrac{e}{E}\,(\theta^c - \theta^s), \qquad
              \Delta\tilde\theta_e = \tilde\theta_e - \tilde\theta_{e-1} = \tfrac1E\,(\theta^c - \theta^s)
              \qquad (19, 20)

    ``epoch`` is the one that is attacked, 1 to E. The orders of the other epochs, which the attacker cannot know, are
    not needed then. Where they do not matter (one epoch, or one batch an epoch: scenarios 1 to 3) the whole training
    is simulated, as in :class:`FullSimulation`. Batches are cut from the labels in the order given.
    """

    epoch: int = 1

    def __post_init__(self) -> None:
        whole_number("epoch", self.epoch)

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation."""
        training = observation.training
        if observation.kind == "gradient":
            return OneBatch().begin(observation, functional=functional)
        epochs, sizes, lr = int(training.need("epochs")), list(training.batch_sizes), training.need("lr")
        if self.epoch > epochs:
            raise InvalidInput(f"epoch {self.epoch} cannot be attacked: the client trained for {epochs}")
        if epochs == 1 or len(sizes) == 1:
            return FullSimulation().begin(observation, functional=functional)
        assert observation.returned is not None
        passed = (self.epoch - 1) / epochs
        start = elementwise(lambda a, b: a + passed * (b - a), observation.sent, observation.returned)
        buffers = observation.model_buffers()

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            batches = zip(inputs.split(sizes), targets.split(sizes), strict=True)
            weights, _ = local_sgd(
                observation.model, start, batches, training, buffers=buffers, gradients="graph", functional=functional
            )
            return scale(subtract(start, weights), epochs / lr)

        return ClientModel(predict, batches=len(sizes))


@dataclass(frozen=True)
class MixedPrecision:
    """Another model of the client, whose convolutions and matrix products are taken in bfloat16.

    Its updates are off by a few thousandths of their length; weights, sums and the loss stay as they are. It pays where
    the processor has instructions for bfloat16 and the network is large. Models in double precision are left alone.
    """

    base: UpdateModel

    @property
    def new_orders(self) -> bool:
        """Whether variables of different epochs lie in the same order, as in :class:`FullSimulation`."""
        return getattr(self.base, "new_orders", False)

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation."""
        client = self.base.begin(observation, functional=functional)

        def predict(inputs: Tensor, targets: Tensor, **extra: Tensor) -> Params:
            with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
                update = client.predict(inputs, targets, **extra)
            return {name: value.to(observation.sent[name].dtype) for name, value in update.items()}

        return replace(client, predict=predict)


def in_precision(update_model: UpdateModel, mixed: bool) -> UpdateModel:
    """The same model of the client, or that in mixed precision."""
    if not isinstance(mixed, bool):
        raise InvalidInput(f"mixed must be True or False, not {mixed!r}")
    return MixedPrecision(update_model) if mixed else update_model


def _one_step(trainer: Trainer, observation: Observation) -> Callable[[State, Tensor, Tensor], Params]:
    """All local steps as one gradient, times how often the client applied one.

    Where that is unknown, once, for a direction is all that is needed then.
    """
    training = observation.training
    unknown = None in (training.epochs, training.batch_size, training.samples)
    often = 1.0 if observation.kind == "gradient" or unknown else training.applied_gradients
    decay = 0.0 if observation.kind == "gradient" else trainer.weight_decay

    def step(state: State, inputs: Tensor, targets: Tensor) -> Params:
        with trainer.active():
            gradient, _ = trainer.gradient(state, (inputs, targets), graph=True)
        if decay:
            gradient |= {name: gradient[name].add(state.weights[name], alpha=decay) for name in trainer.trainable}
        return gradient if often == 1 else scale(gradient, often)

    return step


def _batches(observation: Observation, copies: int) -> int:
    try:
        return copies * len(observation.training.batch_sizes)
    except MissingKnowledge:
        return copies
