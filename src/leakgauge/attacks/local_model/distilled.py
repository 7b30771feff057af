r"""Algorithm 2 with the client's own training as the update map, on samples that are made up to explain its updates.

The update map :math:`G(w, \theta)` of equation 7 may be any function. Here it has the form that the attacker knows it
to have, the mean gradient of the client's local steps; only the data is unknown, so :math:`w` are some samples with
soft labels (:mod:`leakgauge.attacks.local_model.dummies`):

.. math:: \hat w = \arg\min_w \sum_t \log\Bigl(1 + \frac{\lVert G(w, \theta_t) - g_t \rVert^2}{\lVert g_t \rVert^2}
          \Bigr), \qquad \hat\theta = \arg\min_\theta L(\theta; \hat w),

with :math:`g_t` the client's mean gradient of a round. The logarithm keeps rounds that no samples explain from drowning
the others: near the end of a training :math:`g_t` may be what is left of steps that cancel each other. The minimum over
:math:`\theta` (equation 8) is where training on the made-up samples ends.

They are not the client's samples, and training on them for too long fits what is made up. So two sets are fitted
apart, and training stops where the model of one set no longer gets better on the other: what both agree on is the
client's. Sets that predict the gradient of most rounds they have not seen no better than zeros do say nothing of the
client, as where its gradients have vanished: then the last model known is the answer, which it leaves alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakgauge.attacks.local_model.dummies import Target
from leakgauge.attacks.local_model.messages import Found, LocalModelAttack, Messages
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.federation.training import Batch

#: From this relative error on, made-up samples say nothing: zeros have an error of 1, and the truth under noise of
#: ten times its length 0.995.
NOTHING = 0.999


@dataclass(frozen=True)
class Distilled(LocalModelAttack):
    """The model that ``samples`` made-up samples lead to, which explain the client's updates (beyond the paper).

    Each of the two sets takes ``steps`` of Adam, each on ``rounds`` rounds drawn at random; every ``hold``-th round is
    held out, and the median error there is reported. Of the client's local steps at most ``local`` are simulated.
    Training on the sets, from the model that the client returned last, takes up to ``training`` steps of Adam with
    ``training_lr``. Where the client's learning rate or number of steps is unknown, only the direction of its gradients
    is compared.
    """

    samples: int = 128
    steps: int = 200
    rounds: int = 4
    local: int = 4
    lr: float = 0.05
    hold: int = 10
    training: int = 300
    training_lr: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("samples", "steps", "rounds", "local", "training"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.hold < 2:
            raise InvalidInput(f"hold must be at least 2, not {self.hold}")

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """Make up two sets of samples (7), then train on both (8) for as long as they agree."""
        target = Target(messages, self.local)
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
        if not share < NOTHING:
            words = "; no gradient at all would do as well, so the model is the last one known"
            return Found(start, outcome + words, None, {"held_out_error": share, "steps": 0.0})
        weights, steps, before, after = self._train(target, messages.unflatten(start), sets)
        outcome += f"; {steps} steps on them lower the loss across sets from {before:.4g} to {after:.4g}"
        vector = torch.cat([value.reshape(-1) for value in weights.values()])
        return Found(vector, outcome, None, {"held_out_error": share, "steps": float(steps), "loss_across": after})

    def _make_up(
        self, target: Target, held: Tensor, seed: int, number: int, report: Callable[[int, float], None]
    ) -> tuple[Batch, float]:
        """One set of samples with its targets, and its median relative error on the held-out rounds."""
        draw = generator(seed, "made-up samples", number)
        free, labels = target.start(self.samples, draw)
        variables = [free.requires_grad_(), labels.requires_grad_()]
        optimiser = torch.optim.Adam(variables, lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        seen = (~held).nonzero().flatten()
        for step in range(self.steps):
            chosen = seen[torch.randint(len(seen), (self.rounds,), generator=draw)]
            loss = target.errors(chosen, target.batch(free, labels)).log1p().mean()
            for variable, gradient in zip(variables, torch.autograd.grad(loss, variables), strict=True):
                variable.grad = gradient
            optimiser.step()
            schedule.step()
            report(step + 1, float(loss.detach()))
        inputs, targets = target.batch(free.detach(), labels.detach())
        with torch.no_grad():
            checked = held.nonzero().flatten() if bool(held.any()) else seen
            error = float(target.errors(checked, (inputs, targets)).sqrt().nan_to_num(math.inf).median())
        return (inputs, targets), error

    def _train(self, target: Target, start: Params, sets: list[Batch]) -> tuple[Params, int, float, float]:
        """Train on each set until the other's loss is least, then on both for as many steps."""
        courses = []
        for own, other in ((0, 1), (1, 0)):
            watch = partial(target.loss, batch=sets[other])
            courses.append(target.train(start, sets[own], self.training, self.training_lr, watch)[1])
        across = torch.tensor(courses).mean(0).nan_to_num(math.inf)
        steps = int(across.argmin())
        both = (torch.cat([inputs for inputs, _ in sets]), torch.cat([targets for _, targets in sets]))
        weights = target.train(start, both, steps, self.training_lr)[0]
        return weights, steps, float(across[0]), float(across[steps])
