r"""Made-up samples, and how well they explain what a client sent: the parts of ``Distilled``.

The client's message of a round is taken as its mean gradient :math:`g_t`, its update over the learning rate and the
number of local steps. Made-up samples :math:`w` answer with the mean gradient of as many steps on all of them,
:math:`G(w, \theta_t) = (\theta_t - \theta_t^K) / (K \eta)`, since a client whose steps swing across a valley comes back
with an update that the gradient at no single point has.

**Where the inputs lie** can be read off the gradients. That of a dense first layer is :math:`\sum_i \delta_i x_i^T`, of
its bias :math:`\sum_i \delta_i`, so with inputs near their mean one is the other times that mean: the regression of the
first on the second, over all neurons and rounds, finds it. What the regression leaves tells how far the columns spread,
one beside the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from leakgauge.attacks.local_model.messages import Messages, gradients_of, points_of, steps_in
from leakgauge.core.observation import DataSpec
from leakgauge.core.params import Params
from leakgauge.federation.training import Batch, State, Trainer

#: Shares and pixels are taken for no nearer than this to 0 and to 1, which no finite free number stands for.
EDGE = 0.02
#: A first layer of fewer neurons does not tell where its inputs lie.
NEURONS = 8
#: A bias whose squared gradient is a smaller share of the weights' has none but by rounding.
SILENT = 1e-8


@dataclass(frozen=True, eq=False)
class Region:
    """Where samples are made up: free numbers ``f`` stand for ``possible(centre + spread * f)``."""

    centre: Tensor
    spread: Tensor = field(repr=False)

    @classmethod
    def read(cls, gradients: Params, data: DataSpec) -> Region:
        """Where a client's inputs lie, by the gradients of its rounds; about zero if the first layer does not tell."""
        like = next(iter(gradients.values()))
        centre, spread = like.new_zeros(data.shape), like.new_ones(data.shape)
        seen = first_layer(gradients, data)
        if seen is None:
            return cls(centre, spread)
        mean, left = seen
        shares = data.denormalise(mean.unsqueeze(0))[0].clamp(EDGE, 1 - EDGE)
        if data.bounded:
            return cls(shares.logit(), spread)
        numbers, groups = _columns(data)
        centre[numbers] = mean[numbers]
        if numbers and float(left[numbers].max()) > 0:
            spread[numbers] = 2 * left[numbers] / left[numbers].max()
        for members in groups:
            centre[members] = (shares[members].log() if len(members) > 1 else shares[members].logit()) / 2
        return cls(centre, spread)

    def draw(self, samples: int, draw: torch.Generator) -> Tensor:
        """Free numbers of random samples."""
        return 0.5 * torch.randn(samples, *self.centre.shape, generator=draw).to(self.centre)


class Target:
    """The client's messages, as made-up samples are to explain them.

    Of a client's local steps at most ``local`` are simulated, each for as many of the client's. Where its learning
    rate or number of steps is unknown, none are: the direction of its update is that of the gradient half way.
    """

    def __init__(self, messages: Messages, local: int = 4) -> None:
        last = messages.last
        self.last, self.data = last, last.data
        # The step is the attacker's own: what it is given here is the loss and the mode.
        self.trainer = Trainer(
            last.model, replace(last.training, lr=1.0, momentum=0.0, weight_decay=0.0), functional=True
        )
        gradients, self.scaled = gradients_of(messages)
        taken = (steps_in(last) or 1) if self.scaled else 1
        self.local = min(local, taken)
        self.stride = float(last.training.lr or 1.0) * taken / self.local
        points = messages.sent if self.local > 1 else points_of(messages)
        self.points, self.gradients = stacked(points, last.sent), stacked(gradients, last.sent)
        self.squares = _product(self.gradients, self.gradients).clamp_min(1e-30)
        self.buffers = last.model_buffers()
        self.region = Region.read(self.gradients, self.data)

    def start(self, samples: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random samples as free numbers, and labels to begin with.

        The labels are those that the last model gives them, but for some noise, so that the gradient starts small.
        """
        free = self.region.draw(samples, draw)
        outputs = self._outputs(self.last.returned or self.last.sent, self.inputs(free)).reshape(samples, -1)
        if self.last.training.loss == "binary_cross_entropy":
            outputs = torch.cat((torch.zeros_like(outputs), outputs), dim=1)
        return free, outputs + 0.1 * torch.randn(outputs.shape, generator=draw).to(free)

    def inputs(self, free: Tensor) -> Tensor:
        """Free numbers as inputs of the model."""
        return possible(self.region.centre + self.region.spread * free, self.data)

    def batch(self, free: Tensor, labels: Tensor) -> Batch:
        """Free numbers as inputs of the model and targets of its loss."""
        inputs = self.inputs(free)
        if self.data.classes is None:
            return inputs, labels.squeeze(1)
        if self.last.training.loss == "binary_cross_entropy":
            return inputs, labels.softmax(1)[:, 1]
        return inputs, labels.softmax(1)

    def errors(self, rounds: Tensor, batch: Batch) -> Tensor:
        """The relative squared error of the mean gradient in some rounds; without its scale, of its direction."""

        def answer(weights: Params, buffers: Params) -> Params:
            total = {name: torch.zeros_like(value) for name, value in weights.items()}
            for _ in range(self.local):
                gradient, buffers = self.trainer.gradient(State(weights, {}, buffers), batch, graph=True)
                weights = {name: value - self.stride * gradient[name] for name, value in weights.items()}
                total = {name: value + gradient[name] / self.local for name, value in total.items()}
            return total

        buffers = {name: value.expand(len(rounds), *value.shape) for name, value in self.buffers.items()}
        with self.trainer.active():
            found: Params = vmap(answer, randomness="different")(_rows(self.points, rounds), buffers)
        wanted, squares = _rows(self.gradients, rounds), self.squares[rounds]
        if self.scaled:
            difference = {name: found[name] - value for name, value in wanted.items()}
            return _product(difference, difference) / squares
        cosine = _product(found, wanted) / (_product(found, found).clamp_min(1e-30) * squares).sqrt()
        return 1 - cosine.square() * cosine.sign()

    def train(
        self, start: Params, batch: Batch, steps: int, lr: float, watch: Callable[[Params], float] | None = None
    ) -> tuple[Params, list[float]]:
        """Train a model on samples by Adam; also give what ``watch`` says before each step and after the last."""
        weights = {name: value.detach().clone() for name, value in start.items()}
        optimiser = torch.optim.Adam(weights.values(), lr=lr)
        seen = []
        with self.trainer.active():
            for _ in range(steps):
                if watch is not None:
                    seen.append(watch(weights))
                gradient, _ = self.trainer.gradient(State(weights, {}, self.buffers), batch, graph=False)
                for name, value in weights.items():
                    value.grad = gradient[name].detach()
                optimiser.step()
        return weights, seen if watch is None else [*seen, watch(weights)]

    def loss(self, weights: Params, batch: Batch) -> float:
        """The loss of a model on samples."""
        return float(self.trainer.loss_function(self._outputs(weights, batch[0]), batch[1]))

    def _outputs(self, weights: Params, inputs: Tensor) -> Tensor:
        state = {**weights, **{name: value.clone() for name, value in self.buffers.items()}}
        with torch.no_grad(), self.trainer.active():
            outputs: Tensor = functional_call(self.last.model, state, (inputs,))
        return outputs


def possible(free: Tensor, data: DataSpec) -> Tensor:
    """Free numbers as samples that the data could hold, on the model's side: pixels in [0, 1], one category each."""
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
    """The columns that hold any number, and those that hold categories, by feature."""
    groups = list(data.one_hot_groups.values())
    grouped = {column for members in groups for column in members}
    return [column for column in range(data.shape[0]) if column not in grouped], groups


def first_layer(gradients: Params, data: DataSpec) -> tuple[Tensor, Tensor] | None:
    """The mean of a client's inputs on the model's side, and how far the regression for it is off in each column.

    ``None`` without a dense first layer that tells: a few neurons see samples as the labels do, and a bias that a
    normalisation takes out again has no gradient. ``gradients`` are stacked, one a round.
    """
    (name, weight), (second, bias) = [*gradients.items(), ("", torch.empty(0))][:2]
    if weight.ndim != 3 or weight.shape[2] != math.prod(data.shape) or bias.shape != weight.shape[:2]:
        return None
    one_layer = name.rpartition(".")[0] == second.rpartition(".")[0]
    felt = float(bias.square().sum()) > SILENT * float(weight.square().sum())
    if not one_layer or not felt or weight.shape[1] < NEURONS:
        return None
    mean = (weight * bias.unsqueeze(-1)).sum((0, 1)) / bias.square().sum()
    left = (weight - bias.unsqueeze(-1) * mean).square().mean((0, 1)).sqrt()
    return mean.reshape(data.shape), left.reshape(data.shape)


def stacked(rows: Tensor, like: Params) -> Params:
    """Flat rows as weights, stacked."""
    sizes = [value.numel() for value in like.values()]
    parts = rows.split(sizes, dim=1)
    return {
        name: part.reshape(len(rows), *value.shape) for (name, value), part in zip(like.items(), parts, strict=True)
    }


def _rows(stacked: Params, rows: Tensor) -> Params:
    return {name: value[rows] for name, value in stacked.items()}


def _product(first: Params, second: Params) -> Tensor:
    """Inner products, one a round."""
    return torch.stack([(first[name] * second[name]).flatten(1).sum(1) for name in first]).sum(0)
