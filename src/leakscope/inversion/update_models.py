"""How the attacker models what the client did: from dummy samples to the update they would have caused.

Every prediction is on the scale of :meth:`Observation.summed_gradient`: the sum of the client's gradients
over its local steps.

====================  ===============================================================  ====================
``SingleStep``        one gradient at the server's weights, times the number of steps  cost of one step
``FullSimulation``    the client's local training on the dummies, differentiated       cost of all steps
                      through; the same variables in every epoch (Geiping et al.)
====================  ===============================================================  ====================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from leakscope.federated.training import Gradients, Trainer, local_sgd
from leakscope.observation import Observation
from leakscope.params import Params, scale, subtract

#: ``predict(inputs, targets) -> update``, with inputs on the model's side of the boundary.
Predict = Callable[[Tensor, Tensor], Params]


class UpdateModel(Protocol):
    """A model of the client."""

    def begin(self, observation: Observation, *, functional: bool) -> Predict:
        """Get ready for one observation; ``functional`` predictions may run under ``torch.func.vmap``."""
        ...


@dataclass(frozen=True)
class SingleStep:
    """One gradient of all samples at the server's weights: exact for FedSGD."""

    def begin(self, observation: Observation, *, functional: bool) -> Predict:
        """Get ready for one observation."""
        trainer = Trainer(observation.model, observation.training, functional=functional)
        state = trainer.start(observation.sent, observation.model_buffers())
        training = observation.training
        unknown = None in (training.epochs, training.batch_size, training.samples)
        # Where the number of steps is unknown the direction is all there is, and only Cosine makes sense of it.
        steps = 1 if observation.kind == "gradient" or unknown else training.steps

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            with trainer.active():
                gradient, _ = trainer.gradient(state, (inputs, targets), graph=True)
            return gradient if steps == 1 else scale(gradient, steps)

        return predict


@dataclass(frozen=True)
class FullSimulation:
    """The client's local training on the dummy samples, in one fixed order for all epochs.

    For a FedSGD observation this is :class:`SingleStep`. Momentum and weight decay that are unknown are taken
    to be zero.

    ``gradients`` is how to differentiate through it (see :mod:`leakscope.federated.training`): ``"graph"`` is
    fast, ``"adjoint"`` needs little memory; ``None`` takes the graph up to ``graph_limit`` numbers in all the
    weights of all steps, then the adjoint.
    """

    gradients: Gradients | None = None
    graph_limit: int = 100_000_000

    def begin(self, observation: Observation, *, functional: bool) -> Predict:
        """Get ready for one observation."""
        if observation.kind == "gradient":
            return SingleStep().begin(observation, functional=functional)
        training = observation.training
        lr, epochs = training.need("lr"), int(training.need("epochs"))
        sizes = list(training.batch_sizes)
        buffers = observation.model_buffers()
        numbers = training.steps * sum(value.numel() for value in observation.sent.values())
        gradients = self.gradients or ("graph" if numbers <= self.graph_limit else "adjoint")

        def predict(inputs: Tensor, targets: Tensor) -> Params:
            batches = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
            weights, _ = local_sgd(
                observation.model,
                observation.sent,
                batches * epochs,
                training,
                buffers=buffers,
                gradients="graph" if functional else gradients,
                functional=functional,
            )
            return scale(subtract(observation.sent, weights), 1 / lr)

        return predict
