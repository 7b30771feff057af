r"""How the attacker models what the client did: from dummy samples to the update they would have caused.

Every prediction is on the scale of :meth:`Observation.summed_gradient`: the sum of the client's gradients
over its local steps. With :math:`\theta^s` sent, :math:`\theta^c` returned, :math:`U` local steps:

====================  ================================================================  ==================
``SingleStep``        :math:`U\,\nabla\ell(x;\theta^s)`, one gradient of all samples      one large step
``Surrogate``         :math:`U\,\nabla\ell(x;\alpha\theta^s+(1-\alpha)\theta^c)`, with      one large step
                      :math:`\alpha` learned (SME, Zhu et al., ICML 2023)
``FullSimulation``    the client's local training on the dummies, differentiated        all local steps
                      through (Geiping et al. 2020; DLF, section 4.3)
====================  ================================================================  ==================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from leakscope.errors import InvalidInput, MissingKnowledge
from leakscope.federated.training import Gradients, Trainer, local_sgd
from leakscope.inversion.labels import rows_of_first_epoch
from leakscope.observation import Observation
from leakscope.params import Params, elementwise, scale, subtract

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
class SingleStep:
    """One gradient of all samples at the server's weights: exact for FedSGD."""

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation."""
        trainer = Trainer(observation.model, observation.training, functional=functional)
        state = trainer.start(observation.sent, observation.model_buffers())
        steps = _known_steps(observation)

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            with trainer.active():
                gradient, _ = trainer.gradient(state, (inputs, targets), graph=True)
            return gradient if steps == 1 else scale(gradient, steps)

        return ClientModel(predict, batches=_batches(observation, 1))


@dataclass(frozen=True)
class Surrogate:
    """One gradient of all samples at a point between the two weights, whose place is learned (SME).

    ``position`` is where it starts: 1 at the weights that were sent, 0 at those that came back. For a FedSGD
    observation this is :class:`SingleStep`.
    """

    position: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.position <= 1:
            raise InvalidInput(f"the surrogate's position must lie in [0, 1], not {self.position}")

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Get ready for one observation."""
        if observation.returned is None:
            return SingleStep().begin(observation, functional=functional)
        sent, returned = observation.sent, observation.returned
        trainer = Trainer(observation.model, observation.training, functional=functional)
        start = trainer.start(sent, observation.model_buffers())
        steps = _known_steps(observation)

        def predict(inputs: Tensor, targets: Tensor, position: Tensor) -> Params:
            place = position.clamp(0, 1)
            between = elementwise(lambda first, last: last + place * (first - last), sent, returned)
            with trainer.active():
                gradient, _ = trainer.gradient(replace(start, weights=between), (inputs, targets), graph=True)
            return gradient if steps == 1 else scale(gradient, steps)

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
    epoch's steps together (DLF's baseline FedSGD-Epoch). For a FedSGD observation this is :class:`SingleStep`.
    Momentum and weight decay that are unknown are taken to be zero.

    ``gradients`` is how to differentiate through it (see :mod:`leakscope.federated.training`): ``"graph"`` is
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
            return SingleStep().begin(observation, functional=functional)
        training, sent = observation.training, observation.sent
        lr, epochs, samples = training.need("lr"), int(training.need("epochs")), int(training.need("samples"))
        sizes = list(training.batch_sizes)
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


def _known_steps(observation: Observation) -> int:
    """The number of local steps; one where it is unknown, for a direction is all that is needed then."""
    training = observation.training
    if observation.kind == "gradient" or None in (training.epochs, training.batch_size, training.samples):
        return 1
    return training.steps


def _batches(observation: Observation, copies: int) -> int:
    try:
        return copies * len(observation.training.batch_sizes)
    except MissingKnowledge:
        return copies
