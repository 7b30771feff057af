r"""Algorithm 2 with the client's own training as the update map, on samples that are made up to explain its updates.

The update map :math:`G(w, \theta)` of equation 7 may be any function. Here it has the form that the attacker knows it
to have, the gradient of the client's loss; only the data is unknown, so :math:`w` are some samples with soft labels:

.. math:: \hat w = \arg\min_w \sum_t \frac{\lVert \nabla L(\theta_t; w) - g_t \rVert^2}{\lVert g_t \rVert^2}, \qquad
          \hat\theta = \arg\min_\theta L(\theta; \hat w),

with :math:`g_t` the client's mean gradient of a round: its update over the learning rate and the number of local steps.
It is compared at the model sent where there was one step, else half way to the one returned. The minimum over
:math:`\theta` (equation 8) is where training on the made-up samples ends.

They are not the client's samples, and training on them for too long fits what is made up. So two sets are fitted
apart, and training stops where the model of one set no longer gets better on the other: what both agree on is the
client's. Sets that predict the gradient of rounds they have not seen worse than zeros do say nothing of the client, as
where its gradients have vanished: then the last model known is the answer, which the client leaves alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from leakscope.errors import InvalidInput
from leakscope.federated.training import Batch, State, Trainer
from leakscope.inference.messages import Found, LocalModelAttack, Messages, gradients_of, points_of
from leakscope.observation import DataSpec
from leakscope.params import Params
from leakscope.progress import Report
from leakscope.seeding import generator


@dataclass(frozen=True)
class Distilled(LocalModelAttack):
    """The model that ``samples`` made-up samples lead to, which explain the client's updates (beyond the paper).

    Each of the two sets takes ``steps`` of Adam, each on ``rounds`` rounds drawn at random; every ``hold``-th round is
    held out, and the error there is reported. Training on the sets, by plain SGD as the client's from the model that it
    returned last, takes up to ``training`` steps of the client's learning rate, or of ``training_lr``. Where the
    client's learning rate or number of steps is unknown, only the direction of its gradients is compared.
    """

    samples: int = 128
    steps: int = 400
    rounds: int = 4
    lr: float = 0.05
    hold: int = 10
    training: int = 500
    training_lr: float | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "steps", "rounds", "training"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.hold < 2:
            raise InvalidInput(f"hold must be at least 2, not {self.hold}")

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """Make up two sets of samples (7), then train on both (8) for as long as they agree."""
        target = Target(messages)
        held = torch.arange(len(messages)) % self.hold == self.hold - 1
        if not bool(held.any()) or bool(held.all()):
            held = torch.zeros(len(messages), dtype=torch.bool)
        sets, errors = [], []
        for number in range(2):

            def part(step: int, loss: float, number: int = number) -> None:
                report(number * self.steps + step, 2 * self.steps, loss)

            batch, error = self._make_up(target, held, seed, number, part)
            sets.append(batch)
            errors.append(error)
        start = messages.sent[-1] + messages.updates[-1] if messages.last.kind == "weights" else messages.sent[-1]
        share = sum(errors) / len(errors)
        outcome = (
            f"{self.samples} made-up samples predict the gradient of a held-out round with an error of {share:.0%}"
        )
        if not share < 1:
            words = "; no gradient at all would be nearer, so the model is the last one known"
            return Found(start, outcome + words, None, {"held_out_error": share, "steps": 0.0})
        weights, steps, before, after = self._train(target, messages.unflatten(start), sets)
        outcome += f"; {steps} steps on them lower the loss across sets from {before:.4g} to {after:.4g}"
        vector = torch.cat([value.reshape(-1) for value in weights.values()])
        return Found(vector, outcome, None, {"held_out_error": share, "steps": float(steps), "loss_across": after})

    def _make_up(
        self, target: Target, held: Tensor, seed: int, number: int, report: Callable[[int, float], None]
    ) -> tuple[Batch, float]:
        """One set of samples with its targets, and its relative error on the held-out rounds."""
        draw = generator(seed, "made-up samples", number)
        free, labels = target.start(self.samples, draw)
        variables = [free.requires_grad_(), labels.requires_grad_()]
        optimiser = torch.optim.Adam(variables, lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        seen = (~held).nonzero().flatten()
        for step in range(self.steps):
            chosen = seen[torch.randint(len(seen), (self.rounds,), generator=draw)]
            loss = target.errors(chosen, target.batch(free, labels)).mean()
            for variable, gradient in zip(variables, torch.autograd.grad(loss, variables), strict=True):
                variable.grad = gradient
            optimiser.step()
            schedule.step()
            report(step + 1, float(loss.detach()))
        inputs, targets = target.batch(free.detach(), labels.detach())
        with torch.no_grad():
            checked = held.nonzero().flatten() if bool(held.any()) else seen
            error = float(target.errors(checked, (inputs, targets)).mean().sqrt())
        return (inputs, targets), error

    def _train(self, target: Target, start: Params, sets: list[Batch]) -> tuple[Params, int, float, float]:
        """Train on each set until the other's loss is least, then on both for as many steps."""
        lr = self.training_lr or target.last.training.lr or 0.01
        courses = []
        for own, other in ((0, 1), (1, 0)):
            watch = partial(target.loss, batch=sets[other])
            courses.append(target.train(start, sets[own], self.training, lr, watch)[1])
        across = torch.tensor(courses).mean(0).nan_to_num(math.inf)
        steps = int(across.argmin())
        both = (torch.cat([inputs for inputs, _ in sets]), torch.cat([targets for _, targets in sets]))
        return target.train(start, both, steps, lr)[0], steps, float(across[0]), float(across[steps])


class Target:
    """The client's gradients, as made-up samples are to give them."""

    def __init__(self, messages: Messages) -> None:
        last = messages.last
        self.last, self.data = last, last.data
        # The step is the attacker's own: what it is given here is the loss and the mode.
        self.trainer = Trainer(
            last.model, replace(last.training, lr=1.0, momentum=0.0, weight_decay=0.0), functional=True
        )
        gradients, self.scaled = gradients_of(messages)
        self.points, self.gradients = _stacked(points_of(messages), last.sent), _stacked(gradients, last.sent)
        self.squares = _product(self.gradients, self.gradients).clamp_min(1e-30)
        self.buffers = last.model_buffers()

    def start(self, samples: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random samples, before :meth:`batch` makes them ones that the data could hold, and labels to begin with.

        The labels are those that the last model gives them, but for some noise, so that the gradient starts small.
        """
        like = next(iter(self.last.sent.values()))
        free = 0.5 * torch.randn(samples, *self.data.shape, generator=draw).to(like)
        outputs = self._outputs(self.last.returned or self.last.sent, possible(free, self.data)).reshape(samples, -1)
        if self.last.training.loss == "binary_cross_entropy":
            outputs = torch.cat((torch.zeros_like(outputs), outputs), dim=1)
        return free, outputs + 0.1 * torch.randn(outputs.shape, generator=draw).to(like)

    def batch(self, free: Tensor, labels: Tensor) -> Batch:
        """Free variables as inputs of the model and targets of its loss."""
        inputs = possible(free, self.data)
        if self.data.classes is None:
            return inputs, labels.squeeze(1)
        if self.last.training.loss == "binary_cross_entropy":
            return inputs, labels.softmax(1)[:, 1]
        return inputs, labels.softmax(1)

    def errors(self, rounds: Tensor, batch: Batch) -> Tensor:
        """The relative squared error of the gradient in some rounds; without its scale, that of its direction."""

        def gradient(weights: Params, buffers: Params) -> Params:
            return self.trainer.gradient(State(weights, {}, buffers), batch, graph=True)[0]

        buffers = {name: value.expand(len(rounds), *value.shape) for name, value in self.buffers.items()}
        with self.trainer.active():
            found: Params = vmap(gradient, randomness="different")(_rows(self.points, rounds), buffers)
        wanted, squares = _rows(self.gradients, rounds), self.squares[rounds]
        if self.scaled:
            difference = {name: found[name] - value for name, value in wanted.items()}
            return _product(difference, difference) / squares
        cosine = _product(found, wanted) / (_product(found, found).clamp_min(1e-30) * squares).sqrt()
        return 1 - cosine.square() * cosine.sign()

    def train(
        self, start: Params, batch: Batch, steps: int, lr: float, watch: Callable[[Params], float] | None = None
    ) -> tuple[Params, list[float]]:
        """Train a model on samples by SGD; also give what ``watch`` says before each step and after the last."""
        weights = {name: value.detach().clone() for name, value in start.items()}
        seen = []
        with self.trainer.active():
            for _ in range(steps):
                if watch is not None:
                    seen.append(watch(weights))
                gradient, _ = self.trainer.gradient(State(weights, {}, self.buffers), batch, graph=False)
                weights = {name: value - lr * gradient[name].detach() for name, value in weights.items()}
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
    groups = data.one_hot_groups
    if not groups:
        return free
    grouped = [column for members in groups.values() for column in members]
    numbers = [column for column in range(free.shape[1]) if column not in set(grouped)]
    parts = [data.denormalise(free)[:, numbers]]
    parts += [
        (2 * free[:, members]).softmax(1) if len(members) > 1 else (2 * free[:, members]).sigmoid()
        for members in groups.values()
    ]
    order = torch.tensor(numbers + grouped, device=free.device).argsort()
    return data.normalise(torch.cat(parts, dim=1)[:, order])


def _stacked(rows: Tensor, like: Params) -> Params:
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
