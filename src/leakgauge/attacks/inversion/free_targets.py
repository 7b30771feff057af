r"""Targets that are optimised beside the samples, because the message does not show them.

Only the classes of classification can be read off a message. All other targets are unknown to an attacker: the numbers
of a regression, several labels, masks. Every attack that optimises samples optimises these targets too. The variables
and their meaning are in :mod:`leakgauge.attacks.inversion.heads`.

The starting point is read from the message as far as possible. Let :math:`h` be the parameters of the last trained
layer, and :math:`g_h` their observed gradient. For random dummy inputs with equal targets :math:`y`, the gradient
:math:`g_h(y)` depends on :math:`y` far more than on the inputs. The variables therefore start at the solution of

.. math:: \min_y \; \lVert g_h(y) - g_h \rVert^2

plus noise. For one sample this is the sign of each label, or the target's side of the prediction. For a batch it is the
share of each label, or the mean target. We know of no earlier description of this estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.func import functional_call

from leakgauge.attacks.inversion.heads import Classes, Head, Numbers, OneHot, Places, YesNo
from leakgauge.attacks.inversion.labels import granted_labels
from leakgauge.attacks.inversion.layers import layers_of_model
from leakgauge.attacks.inversion.soft_labels import is_soft
from leakgauge.attacks.inversion.update_models import ClientModel
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.params import Params, scale
from leakgauge.core.seeding import generator
from leakgauge.federation.losses import SMOOTHED, takes_model
from leakgauge.federation.training import Trainer

#: The number of dummy inputs with which the start is read from the message, and of the steps of L-BFGS.
DUMMIES, STEPS = 16, 30
#: The size of logits whose probabilities are 0 and 1 in single precision.
CERTAIN = 40.0
#: The relative difference of two distances that are about the same.
ALIKE = 0.05
#: The size of a value that is far from all predictions, in units of the largest prediction.
FAR = 10.0
#: The unit of the target of a single sample, as a share of its distance from the prediction.
READ = 0.1
#: The powers of ten that are tried as the size of unknown numbers.
POWERS = range(-3, 7)
#: The largest size of the logits at the start, so that wrong ones can still change.
MOST_CERTAIN = 3.0
#: The standard deviation of the noise at the start, for each sample by itself.
NOISE = 0.3


@dataclass(frozen=True, eq=False)
class FreeTargets:
    """Targets that are variables of the optimisation.

    Args:
        start: The variables at the start, one row for each sample.
        head: The kind of the targets, which turns the variables into targets.
    """

    start: Tensor
    head: Head

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.start)

    def to(self, device: torch.device) -> FreeTargets:
        """Return the targets on another device."""
        return replace(self, start=self.start.to(device))

    def into(self, client: ClientModel) -> ClientModel:
        """Return a model of the client with the variables of the targets among its further variables.

        Args:
            client: The attacker's model of the client, which takes targets.
        """

        def predict(inputs: Tensor, targets: Tensor, labels: Tensor, **extra: Tensor) -> Params:
            return client(inputs, self.head.targets(labels), **extra)

        return replace(client, predict=predict, extra={**client.extra, "labels": self.start}, epoch_labels=True)


#: The targets of the dummy samples, which are known or free.
Targets = Tensor | FreeTargets


def free_targets(observation: Observation, draw: torch.Generator) -> FreeTargets | None:
    """Return the targets as variables of the optimisation, or ``None`` if they are given or can be read off.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        draw: The random generator of the start.

    Raises:
        MissingKnowledge: If the loss accepts no targets that can be differentiated.
    """
    if not unknown_targets(observation):
        return None
    head = head_for(observation)
    if head is None:
        raise MissingKnowledge(
            f"the targets cannot be optimised, because the loss {observation.training.loss!r} does not accept targets "
            'that can be differentiated. Grant them ([attacker] granted = ["labels"] in TOML, '
            "observation.knowing(labels=...) in Python)"
        )
    head, shared = _read(observation, head)
    samples = int(observation.training.need("samples"))
    noise = torch.randn(samples, *head.variables, generator=draw).to(shared)
    return FreeTargets(shared + NOISE * noise, head)


def unknown_targets(observation: Observation) -> bool:
    """Return whether the targets are neither given nor classes, which can be read off the message.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    return observation.data.classes is None and granted_labels(observation) is None


def with_logits(targets: Targets, data: DataSpec) -> Targets:
    """Return targets that are optimised if the given targets are initial logits of classes, and otherwise as given.

    Args:
        targets: The targets of the samples.
        data: The description of the data.
    """
    if isinstance(targets, FreeTargets) or not is_soft(targets, data):
        return targets
    return FreeTargets(targets, Classes(targets.shape[-1]))


def values_of(targets: Targets) -> Tensor:
    """Return known targets, or the initial variables of free targets."""
    return targets.start if isinstance(targets, FreeTargets) else targets


def as_simulated(observation: Observation) -> Observation:
    """Return the message with a loss that an attacker can differentiate with respect to the targets.

    The mean absolute error and the Huber loss have derivatives that do not depend on distant targets. They are replaced
    by smooth losses with nearly the same derivatives.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    smooth = f"{observation.training.loss} (smoothed)"
    return observation.knowing(loss=smooth) if smooth in SMOOTHED else observation


def head_for(observation: Observation) -> Head | None:
    """Return the kind of a client's targets, or ``None`` if the loss accepts no targets that can be differentiated.

    Each kind that the description of the data allows is tried on two random samples.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    trial = _Trial(observation)
    return next((head for head in trial.candidates() if trial.accepts(head)), None)


class _Trial:
    """Two random samples on which the loss is tried."""

    def __init__(self, observation: Observation) -> None:
        self.observation = as_simulated(observation)
        self.trainer = Trainer(self.observation.model, self.observation.training, as_attacker=True)
        self.state = self.trainer.start(observation.sent, observation.model_buffers())
        self.like = next(iter(observation.sent.values()))
        draw = generator(0, "trial")
        self.inputs = torch.randn(2, *observation.data.shape, generator=draw).to(self.like)

    def outputs(self) -> object:
        with torch.no_grad(), self.trainer.active():
            tensors = {**self.state.weights, **{name: value.clone() for name, value in self.state.buffers.items()}}
            return functional_call(self.trainer.model, tensors, (self.inputs,))

    def candidates(self) -> Iterator[Head]:
        """Yield the kinds of targets that the description of the data and the loss allow, the likeliest first."""
        data, loss = self.observation.data, self.observation.training.loss
        shape, values = data.target_shape, data.target_values
        if loss == "binary_cross_entropy":
            yield YesNo(self._shape())
        elif loss == "cross_entropy" and len(shape) == 1 and values == 2:
            yield OneHot(shape[0])
        elif values is None:
            yield Numbers(self._shape())
        else:
            if values == 2 and loss != "cross_entropy":
                yield YesNo(shape)
            yield Places(values, shape)

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of a target, which is that of the model's outputs if the data does not describe it."""
        shape, outputs = self.observation.data.target_shape, None
        if not shape and not takes_model(self.trainer.loss_function):
            outputs = self.outputs()
        if not isinstance(outputs, Tensor) or prod(outputs.shape[1:]) == 1:
            return shape
        return tuple(outputs.shape[1:])

    def accepts(self, head: Head) -> bool:
        """Return whether the loss can be differentiated with respect to these targets, or does not depend on them."""
        values: list[float] = []
        slopes: tuple[Tensor | None, ...] = (None,)
        direction = torch.randn(2, *head.variables, generator=generator(0, "direction")).to(self.like)
        with self.trainer.active():
            for level in (-CERTAIN, 0.5):
                variables = (level * direction).requires_grad_()
                try:
                    loss = self.trainer.loss(self.state, (self.inputs, head.targets(variables)))
                    slopes = torch.autograd.grad(loss, variables, allow_unused=True) if loss.requires_grad else (None,)
                except Exception:  # the loss may be the user's own
                    return False
                if loss.numel() != 1 or not bool(loss.isfinite().all()):
                    return False
                values.append(float(loss.detach()))
        return slopes[0] is not None or values[0] == values[1]


def _read(observation: Observation, head: Head) -> tuple[Head, Tensor]:
    """Return the kind of targets with its centre and scale, and the variables that explain the last layer's gradient.

    The variables have a first dimension of 1. They are equal for all samples, and in all places of a mask.
    """
    probe = _Probe.of(as_simulated(observation))
    like = next(iter(observation.sent.values()))
    if probe is None:
        return head, torch.zeros(1, *head.shared).to(like)
    shared = probe.solved(head)
    if not isinstance(head, Numbers):
        return head, shared.clamp(-MOST_CERTAIN, MOST_CERTAIN)
    predicted = probe.outputs.detach()
    outputs = predicted.reshape(len(predicted), *head.shape).to(shared)
    for dimension, size in enumerate(head.shared, 1):
        outputs = outputs.mean(dimension, keepdim=True) if size == 1 else outputs
    distance = (outputs.mean(0, keepdim=True) - shared).abs()
    width = torch.maximum(distance, outputs.std(0, keepdim=True)).clamp_min(1e-6)
    if observation.training.samples == 1:  # its target is read, and must not drift to the other side of the prediction
        width = READ * width
    return replace(head, centre=shared, scale=width), torch.zeros_like(shared)


@dataclass(frozen=True, eq=False)
class _Probe:
    """Dummy inputs with the outputs of the model for them, and the observed gradient of the last trained layer.

    Args:
        outputs: The outputs for the dummy inputs, with a graph to the last layer's parameters.
        parameters: The parameters of the last trained layer.
        observed: The observed gradient of these parameters.
        loss: The loss of outputs and targets.
        scale_free: Whether only the direction of the gradient is compared, because its size is unknown.
    """

    outputs: Tensor
    parameters: list[Tensor]
    observed: list[Tensor]
    loss: Callable[..., Tensor]
    scale_free: bool

    @classmethod
    def of(cls, observation: Observation) -> _Probe | None:
        """Return the probe for a message, or ``None`` if the loss is no function of outputs and targets."""
        trainer = Trainer(observation.model, observation.training, as_attacker=True)
        if trainer.with_loss is not None:
            return None
        like = next(iter(observation.sent.values()))
        inputs = torch.randn(DUMMIES, *observation.data.shape, generator=generator(0, "probe")).to(like)
        names = layers_of_model(observation.model, trainer.trainable)[-1].parameters
        weights = {name: value.detach() for name, value in observation.sent.items()}
        weights |= {name: weights[name].clone().requires_grad_() for name in names}
        buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
        with trainer.active(), torch.enable_grad():
            outputs = functional_call(observation.model, {**weights, **buffers}, (inputs,))
        if not isinstance(outputs, Tensor) or not outputs.requires_grad:
            return None
        gradient, scale_free = _mean_gradient(observation)
        parameters, observed = [weights[name] for name in names], [gradient[name] for name in names]
        return cls(outputs, parameters, observed, trainer.loss_function, scale_free)

    def solved(self, head: Head) -> Tensor:
        """Return the variables, equal for all samples, whose gradient is nearest to the observed one."""
        first = self.coarse(head)
        unit = float(first.abs().max()) or 1.0
        scaled = (first / unit).requires_grad_()
        best, lowest = first, torch.inf
        optimiser = torch.optim.LBFGS([scaled], max_iter=STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            nonlocal best, lowest
            optimiser.zero_grad()
            distance = self.distance(head, unit * scaled)
            if distance.requires_grad:
                distance.backward(inputs=[scaled])
            if float(distance.detach()) < lowest:
                best, lowest = unit * scaled.detach().clone(), float(distance.detach())
            return distance

        with torch.enable_grad():
            optimiser.step(closure)
        return best.nan_to_num()

    def coarse(self, head: Head) -> Tensor:
        """Return the best of some equal values. Numbers may be of any size, and a loss may be flat far from them.

        Of values that explain the gradient about as well, the first far from all predictions is returned, so that the
        error keeps its sign while the samples change. If all values explain it as well, the result is zero.
        """
        sizes = [sign * 10.0**power for power in POWERS for sign in (1, -1)] if isinstance(head, Numbers) else []
        candidates = [torch.full((1, *head.shared), value).to(self.outputs) for value in (0.0, *sizes)]
        with torch.enable_grad():
            distances = [float(self.distance(head, one).detach().nan_to_num(nan=torch.inf)) for one in candidates]
        limit = (1 + ALIKE) * min(distances) + ALIKE**2
        alike = [one for one, distance in zip(candidates, distances, strict=True) if distance <= limit]
        far = FAR * float(self.outputs.detach().abs().max())
        distant = [one for one in alike if float(one.abs().max()) >= far]
        return candidates[0] if len(alike) == len(candidates) else (distant or alike[-1:])[0]

    def distance(self, head: Head, variables: Tensor) -> Tensor:
        """Return the relative squared distance between the gradient for equal targets and the observed one."""
        cut = self.outputs.detach().requires_grad_()
        targets = head.targets(variables.expand(len(cut), *head.variables))
        (slope,) = torch.autograd.grad(self.loss(cut, targets), cut, create_graph=True)
        gradient = torch.autograd.grad(
            self.outputs, self.parameters, slope, create_graph=True, retain_graph=True, materialize_grads=True
        )
        one = torch.cat([part.flatten() for part in gradient])
        other = torch.cat([part.flatten() for part in self.observed])
        if self.scale_free:
            return 1 - torch.nn.functional.cosine_similarity(one, other, dim=0)
        return (one - other).square().sum() / other.square().sum().clamp_min(1e-30)


def _mean_gradient(observation: Observation) -> tuple[Params, bool]:
    """Return the mean gradient behind a message, and whether only its direction is known."""
    training = observation.training
    if observation.kind == "gradient":
        return observation.summed_gradient(), False
    unknown = None in (training.lr, training.epochs, training.batch_size, training.samples)
    if unknown or optimiser_of(observation) != "sgd":
        return observation.difference(), True
    return scale(observation.summed_gradient(), 1 / training.applied_gradients), False
