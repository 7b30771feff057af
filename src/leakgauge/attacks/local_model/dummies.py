r"""Dummy samples that explain the updates of a client, as used by :class:`Distilled`.

The message of round :math:`t` is converted to the client's mean gradient :math:`g_t`. This is the update divided by the
learning rate :math:`\eta` and by the number :math:`K` of local steps. Momentum makes steps longer, which counts as a
larger learning rate. To predict :math:`g_t`, the attack starts from
the sent weights :math:`\theta_t` and takes :math:`K` steps on the dummy samples :math:`w`. These steps end at weights
:math:`\theta_t^K`, and the prediction is :math:`G(w, \theta_t) = (\theta_t - \theta_t^K) / (K \eta)`. The steps have to
be simulated, because the loss may be curved so much that the client's mean gradient is not the gradient at any single
point.

The dummy samples start near the mean of the client's inputs, if the first layer reveals this mean
(:mod:`leakgauge.attacks.local_model.first_layer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from leakgauge.attacks.local_model.first_layer import input_statistics
from leakgauge.attacks.local_model.messages import Messages, gradients_of, points_of, stacked, step_length_of, steps_in
from leakgauge.core.observation import DataSpec
from leakgauge.core.params import Params
from leakgauge.federation.training import Batch, State, Trainer

#: The least distance of shares and pixels from 0 and 1. No finite free number stands for 0 or 1 itself.
EDGE = 0.02


@dataclass(frozen=True, eq=False)
class Region:
    """The region from which dummy samples are drawn.

    Samples are represented by free numbers, which may take any value. The free numbers ``f`` stand for the samples
    ``possible(centre + spread * f)``.

    Args:
        centre: The free numbers that stand for the centre of the region, in the shape of one sample.
        spread: The scale of the free numbers, in the shape of one sample.
    """

    centre: Tensor
    spread: Tensor = field(repr=False)

    @classmethod
    def read(cls, gradients: Params, data: DataSpec) -> Region:
        """Estimate the region of a client's inputs from the gradients of the rounds.

        If the first layer does not reveal the inputs, the region lies around zero.

        Args:
            gradients: The client's gradients. The first dimension of each tensor is the round.
            data: The shape, the columns and the normalisation of the samples.
        """
        like = next(iter(gradients.values()))
        centre, spread = like.new_zeros(data.shape), like.new_ones(data.shape)
        statistics = input_statistics(gradients, data)
        if statistics is None:
            return cls(centre, spread)
        mean, residual = statistics
        shares = data.denormalise(mean.unsqueeze(0))[0].clamp(EDGE, 1 - EDGE)
        if data.bounded:
            return cls(shares.logit(), spread)
        numbers, groups = _columns(data)
        centre[numbers] = mean[numbers]
        if numbers and float(residual[numbers].max()) > 0:
            spread[numbers] = 2 * residual[numbers] / residual[numbers].max()
        for members in groups:
            centre[members] = (shares[members].log() if len(members) > 1 else shares[members].logit()) / 2
        return cls(centre, spread)

    def draw(self, samples: int, draw: torch.Generator) -> Tensor:
        """Draw free numbers, which stand for random samples of the region, (samples, *shape)."""
        return 0.5 * torch.randn(samples, *self.centre.shape, generator=draw).to(self.centre)


class Target:
    """The client's gradients in all rounds, which dummy samples are fitted to.

    Args:
        messages: The messages of the client.
        local: The largest number of simulated steps. If the client takes more steps, each simulated step stands for
            several steps of the client. If the learning rate or the number of steps is unknown, no steps are simulated.
            The direction of the update is then compared with the gradient at the point half way between the sent and
            the returned model.
    """

    def __init__(self, messages: Messages, local: int = 4) -> None:
        last = messages.last
        self.last, self.data = last, last.data
        # The attack takes its own steps. The trainer contributes only the loss and the mode.
        self.trainer = Trainer(
            last.model, replace(last.training, lr=1.0, momentum=0.0, weight_decay=0.0), functional=True
        )
        gradients, self.scaled = gradients_of(messages)
        taken = (steps_in(last) or 1) if self.scaled else 1
        self.local = min(local, taken)
        self.stride = (step_length_of(last) or float(last.training.lr or 1.0)) / self.local
        points = messages.sent if self.local > 1 else points_of(messages)
        self.points, self.gradients = stacked(points, last.sent), stacked(gradients, last.sent)
        self.squares = _product(self.gradients, self.gradients).clamp_min(1e-30)
        self.buffers = last.model_buffers()
        self.region = Region.read(self.gradients, self.data)

    def start(self, samples: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw free numbers, which stand for random samples, and return them with initial labels of these samples.

        The labels are the outputs of the last known model plus some noise, so that the first gradient is small.

        Args:
            samples: The number of samples.
            draw: The random generator.
        """
        free = self.region.draw(samples, draw)
        outputs = self._outputs(self.last.returned or self.last.sent, self.inputs(free)).reshape(samples, -1)
        if self.last.training.loss == "binary_cross_entropy":
            outputs = torch.cat((torch.zeros_like(outputs), outputs), dim=1)
        return free, outputs + 0.1 * torch.randn(outputs.shape, generator=draw).to(free)

    def inputs(self, free: Tensor) -> Tensor:
        """Convert free numbers, which may have any value, to valid inputs of the model."""
        return possible(self.region.centre + self.region.spread * free, self.data)

    def batch(self, free: Tensor, labels: Tensor) -> Batch:
        """Convert free numbers, which may have any value, to inputs of the model and targets of the loss.

        Args:
            free: The free numbers of the samples.
            labels: The free numbers of the labels. For a classification, a softmax converts them to soft labels.
        """
        inputs = self.inputs(free)
        if self.data.classes is None:
            return inputs, labels.squeeze(1)
        if self.last.training.loss == "binary_cross_entropy":
            return inputs, labels.softmax(1)[:, 1]
        return inputs, labels.softmax(1)

    def errors(self, rounds: Tensor, batch: Batch) -> Tensor:
        """Return the relative squared error of the predicted mean gradient in some rounds, (rounds,).

        If the scale of the client's gradient is unknown, the result is the error of the direction.

        Args:
            rounds: The indices of the rounds.
            batch: The dummy samples and their targets.
        """
        buffers = {name: value.expand(len(rounds), *value.shape) for name, value in self.buffers.items()}

        def mean_gradient(weights: Params, buffers: Params) -> Params:
            total = {name: torch.zeros_like(value) for name, value in weights.items()}
            for _ in range(self.local):
                gradient, buffers = self.trainer.gradient(State(weights, {}, buffers), batch, graph=True)
                weights = {name: value - self.stride * gradient[name] for name, value in weights.items()}
                total = {name: value + gradient[name] / self.local for name, value in total.items()}
            return total

        with self.trainer.active():
            predicted: Params = vmap(mean_gradient, randomness="different")(_rows(self.points, rounds), buffers)
        observed, squares = _rows(self.gradients, rounds), self.squares[rounds]
        if self.scaled:
            difference = {name: predicted[name] - value for name, value in observed.items()}
            return _product(difference, difference) / squares
        cosine = _product(predicted, observed) / (_product(predicted, predicted).clamp_min(1e-30) * squares).sqrt()
        return 1 - cosine.square() * cosine.sign()

    def train(
        self, start: Params, batch: Batch, steps: int, lr: float, watch: Callable[[Params], float] | None = None
    ) -> tuple[Params, list[float]]:
        """Train a model on dummy samples by Adam, and return its weights and the values of ``watch``.

        Args:
            start: The initial weights.
            batch: The dummy samples and their targets.
            steps: The number of full-batch steps.
            lr: The learning rate of Adam.
            watch: A function of the weights. It is called before each step and after the last one.
        """
        weights = {name: value.detach().clone() for name, value in start.items()}
        optimiser = torch.optim.Adam(weights.values(), lr=lr)
        values = []
        with self.trainer.active():
            for _ in range(steps):
                if watch is not None:
                    values.append(watch(weights))
                gradient, _ = self.trainer.gradient(State(weights, {}, self.buffers), batch, graph=False)
                for name, value in weights.items():
                    value.grad = gradient[name].detach()
                optimiser.step()
        return weights, values if watch is None else [*values, watch(weights)]

    def loss(self, weights: Params, batch: Batch) -> float:
        """Return the loss of a model on dummy samples."""
        return float(self.trainer.loss_function(self._outputs(weights, batch[0]), batch[1]))

    def predictions(self, weights: Params, inputs: Tensor) -> Tensor:
        """Return the class probabilities of a model on inputs, or the predictions of a regression, (N, outputs).

        Args:
            weights: The weights of the model.
            inputs: The inputs, normalised for the model.
        """
        outputs = self._outputs(weights, inputs).reshape(len(inputs), -1)
        if self.data.classes is None:
            return outputs
        return outputs.sigmoid() if outputs.shape[1] == 1 else outputs.softmax(1)

    def _outputs(self, weights: Params, inputs: Tensor) -> Tensor:
        state = {**weights, **{name: value.clone() for name, value in self.buffers.items()}}
        with torch.no_grad(), self.trainer.active():
            outputs: Tensor = functional_call(self.last.model, state, (inputs,))
        return outputs


def possible(free: Tensor, data: DataSpec) -> Tensor:
    """Convert free numbers to valid samples, normalised for the model.

    Pixels lie in [0, 1]. The one-hot columns of a category hold shares that add up to one.

    Args:
        free: The free numbers of the samples, which may have any value, (N, *shape).
        data: The shape, the columns and the normalisation of the samples.
    """
    if data.bounded:
        return data.normalise(free.sigmoid())
    numbers, groups = _columns(data)
    if not groups:
        return free
    parts = [data.denormalise(free)[:, numbers]]
    parts += [
        (2 * free[:, members]).softmax(1) if len(members) > 1 else (2 * free[:, members]).sigmoid()
        for members in groups
    ]
    order = torch.tensor(numbers + [column for members in groups for column in members], device=free.device).argsort()
    return data.normalise(torch.cat(parts, dim=1)[:, order])


def _columns(data: DataSpec) -> tuple[list[int], list[list[int]]]:
    """Return the indices of the numeric columns, and the indices of the one-hot columns of each category."""
    groups = list(data.one_hot_groups.values())
    grouped = {column for members in groups for column in members}
    return [column for column in range(data.shape[0]) if column not in grouped], groups


def _rows(stacked: Params, rows: Tensor) -> Params:
    return {name: value[rows] for name, value in stacked.items()}


def _product(first: Params, second: Params) -> Tensor:
    """Return the inner product of two gradients in each round, (rounds,)."""
    return torch.stack([(first[name] * second[name]).flatten(1).sum(1) for name in first]).sum(0)
