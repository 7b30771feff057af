r"""Algorithm 2 of LMRA with an update map that simulates the client's training on dummy samples.

The update map :math:`G(w, \theta)` of equation 7 predicts the client's update of a model :math:`\theta`. The paper
allows any function with parameters :math:`w`. Here, the map is the mean gradient of the client's local steps. The
attacker knows how these steps are computed, and only the client's data is unknown. So :math:`w` are dummy samples with
soft labels (:mod:`leakgauge.attacks.local_model.dummies`):

.. math:: \hat w = \arg\min_w \sum_t \log\Bigl(1 + \frac{\lVert G(w, \theta_t) - g_t \rVert^2}{\lVert g_t \rVert^2}
          \Bigr), \qquad \hat\theta = \arg\min_\theta L(\theta; \hat w),

with :math:`g_t` the client's mean gradient in round :math:`t`. Some rounds cannot be explained by any samples. For
example, the steps of a round may cancel each other near the end of a training, and :math:`g_t` is then only a small
remainder. The logarithm keeps such rounds from dominating the sum. The minimum over :math:`\theta` (equation 8) is the
end of a training on the dummy samples.

Dummy samples are not the client's samples, and a long training fits the artefacts of the dummy samples. So two sets of
dummy samples are fitted independently. Training stops when the model of one set no longer improves on the other set.
Only the information on which both sets agree comes from the client. The training of a regression stops earlier, at half
of this improvement. The targets of its dummy samples are free numbers, so the loss on both sets can fall far below the
client's loss, whose remainder leaves no trace in gradients.

Some rounds are held out, which means that no set is fitted to them. The result is the last known model, unchanged, in
four cases. They are checked without the client's data.

- The sets predict most held-out rounds no better than a prediction of zeros, or explain little of what their updates
  have in common. For example, the client's gradients have vanished. Such sets hold little information about the client.
- The client's own steps in held-out rounds do not lower the loss on the dummy samples as they lower the client's loss.
  The dummy samples then do not stand for the client's data where the training starts.
- The models that the two sets lead to differ too much on random inputs. The training has then left the region about
  which the rounds hold information.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakgauge.attacks.local_model.base import Estimate, LocalModelAttack
from leakgauge.attacks.local_model.dummies import Target
from leakgauge.attacks.local_model.messages import Messages, step_length_of
from leakgauge.attacks.spec import AttackSpec, Cost, always
from leakgauge.core.checks import positive, whole_number
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.federation.training import Batch

#: The relative error at or above which dummy samples hold no information. A prediction of zeros has an error of 1. The
#: true gradient under noise of ten times its length has an error of 0.995.
NO_INFORMATION = 0.999
#: The disagreement of the two sets above which a training on them is not used. Independent changes have 0.5.
DISAGREEMENT = 0.3
#: The number of last held-out rounds in which the client's own steps are compared with the dummy samples.
LAST_ROUNDS = 5
#: The least share of what the updates of held-out rounds have in common that the dummy samples must explain.
EXPLAINED = 0.35
#: The least share of the client's own decrease of the loss in held-out rounds that the dummy samples must show.
DECREASE = 0.35
#: The share of the improvement across sets at which the training of a regression stops.
SHARE = 0.5
#: The number of random inputs on which the models of the two sets are compared.
PROBES = 500


@dataclass(frozen=True)
class Distilled(LocalModelAttack):
    """The attack that trains a model on dummy samples, which are fitted to the client's updates (beyond the paper).

    If the client's learning rate or number of steps is unknown, only the direction of the gradients is compared. The
    outcome in words contains the median relative error of the predicted gradients on the held-out rounds.

    Args:
        samples: The number of dummy samples in each of the two sets.
        steps: The number of Adam steps for each set.
        rounds: The number of rounds that are drawn at random for each step.
        local: The largest number of local steps that are simulated.
        lr: The first learning rate of Adam. It falls along a cosine.
        hold: The distance between held-out rounds. Every ``hold``-th round is held out.
        training: The largest number of Adam steps on the dummy samples, from the model that the client returned last.
        training_lr: The learning rate of the training on the dummy samples.
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
            whole_number(name, getattr(self, name))
        whole_number("hold", self.hold, at_least=2)
        for name in ("lr", "training_lr"):
            positive(name, getattr(self, name))

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Fit two sets of dummy samples (equation 7), then train a model on both sets (equation 8)."""
        target = Target(messages, self.local)
        held_out = torch.arange(len(messages)) % self.hold == self.hold - 1
        if not bool(held_out.any()) or bool(held_out.all()):
            held_out = torch.zeros(len(messages), dtype=torch.bool)
        sets, errors = [], []
        for number in range(2):
            batch, error = self._fit_samples(target, held_out, seed, number, report)
            sets.append(batch)
            errors.append(error)
        start = messages.sent[-1] + messages.updates[-1] if messages.last.kind == "weights" else messages.sent[-1]
        share = sum(errors) / len(errors)
        outcome = f"{self.samples} dummy samples predict the gradient of a held-out round with an error of {share:.0%}"
        if not share < NO_INFORMATION:
            outcome += ". Zeros would do as well, so the result is the last model known"
            return Estimate(start, outcome, None, {"held_out_error": share, "steps": 0.0})
        weights, steps, before, after = self._train(target, messages.unflatten(start), sets)
        vector = torch.cat([value.reshape(-1) for value in weights.values()])
        figures = {"held_out_error": share, "steps": float(steps), "loss_across": after}
        figures["disagreement"] = self._disagreement(target, messages.unflatten(start), sets, steps, seed)
        figures |= _held_out_rounds(target, messages, sets, held_out, share)
        problem = _why_not(figures)
        if problem:
            return Estimate(start, f"{outcome}. {problem}, so the result is the last model known", None, figures)
        outcome += f". {steps} steps on them lower the loss across sets from {before:.4g} to {after:.4g}"
        return Estimate(vector, outcome, None, figures)

    def _fit_samples(
        self, target: Target, held_out: Tensor, seed: int, number: int, report: Report
    ) -> tuple[Batch, float]:
        """Fit one set of dummy samples. Return the set and its median relative error on the held-out rounds."""
        draw = generator(seed, "made-up samples", number)  # The text is part of the seed and must not change.
        free, labels = target.start(self.samples, draw)
        variables = [free.requires_grad_(), labels.requires_grad_()]
        optimiser = torch.optim.Adam(variables, lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        fitted = (~held_out).nonzero().flatten()
        for step in range(self.steps):
            chosen = fitted[torch.randint(len(fitted), (self.rounds,), generator=draw)]
            loss = target.errors(chosen, target.batch(free, labels)).log1p().mean()
            for variable, gradient in zip(variables, torch.autograd.grad(loss, variables), strict=True):
                variable.grad = gradient
            optimiser.step()
            schedule.step()
            report(number * self.steps + step + 1, 2 * self.steps, float(loss.detach()))
        inputs, targets = target.batch(free.detach(), labels.detach())
        with torch.no_grad():
            checked = held_out.nonzero().flatten() if bool(held_out.any()) else fitted
            error = float(target.errors(checked, (inputs, targets)).sqrt().nan_to_num(math.inf).median())
        return (inputs, targets), error

    def _train(self, target: Target, start: Params, sets: list[Batch]) -> tuple[Params, int, float, float]:
        """Train a model on both sets of dummy samples, for a number of steps that cross-validation chooses.

        In the cross-validation, each set trains one model, whose loss on the other set is measured at each step. The
        number of steps with the lowest mean loss is chosen. For a regression, it is the first number of steps with a
        share of this improvement. Return the weights, the number of steps, and the mean loss
        before and after the training.
        """
        courses = []
        for this, other in ((0, 1), (1, 0)):
            watch = partial(target.loss, batch=sets[other])
            courses.append(target.train(start, sets[this], self.training, self.training_lr, watch)[1])
        across = torch.tensor(courses).mean(0).nan_to_num(math.inf)
        steps = _steps_for(across, 1.0 if target.data.classes is not None else SHARE)
        both = (torch.cat([inputs for inputs, _ in sets]), torch.cat([targets for _, targets in sets]))
        weights = target.train(start, both, steps, self.training_lr)[0]
        return weights, steps, float(across[0]), float(across[steps])

    def _disagreement(self, target: Target, start: Params, sets: list[Batch], steps: int, seed: int) -> float:
        """Return how much the models that the two sets lead to differ, as a share of the mean square of their changes.

        The models are compared on random inputs. 0 means equal models, and independent changes have 0.5.
        """
        if not steps:
            return 0.0
        inputs = target.inputs(target.region.draw(PROBES, generator(seed, "probes")))
        before = target.predictions(start, inputs)
        changes = [
            target.predictions(target.train(start, batch, steps, self.training_lr)[0], inputs) - before
            for batch in sets
        ]
        size = sum(float(change.square().sum()) for change in changes)
        return float((changes[0] - changes[1]).square().sum()) / (2 * size) if size > 0 else 0.0


def _steps_for(course: Tensor, share: float) -> int:
    """Return the first number of steps at which a loss has made a share of its largest improvement.

    Args:
        course: The loss after each number of steps.
        share: The share, from 0 to 1.
    """
    best = int(course.argmin())
    if share >= 1 or not math.isfinite(float(course[0])):
        return best
    level = course[0] - share * (course[0] - course[best])
    return int((course[: best + 1] <= level).nonzero()[0]) if course[best] < course[0] else 0


def _held_out_rounds(
    target: Target, messages: Messages, sets: list[Batch], held_out: Tensor, error: float
) -> dict[str, float]:
    """Compare the client's own steps in the last held-out rounds with the dummy samples.

    The client's loss decreases in a round by the square of its update divided by the length of its steps. Noise on the
    updates would count as decrease. So the square is the mean product of the updates of two different rounds, and the
    loss on the dummy samples is compared along the mean update.

    Args:
        target: The client's gradients, and the loss on dummy samples.
        messages: The messages of the client.
        sets: The sets of dummy samples.
        held_out: Whether each round is held out.
        error: The relative error of the predicted gradients on the held-out rounds.

    Returns:
        ``explained``, the share of what the updates have in common that the dummy samples predict, and ``decrease``,
        the decrease of their loss divided by that of the client's loss. Both are missing if the scale of the client's
        gradient is unknown, or if the updates have nothing in common.
    """
    rounds = held_out.nonzero().flatten()[-LAST_ROUNDS:]
    length = step_length_of(messages.last)
    if not length or len(rounds) < 2:
        return {}
    updates = messages.updates[rounds].double()
    squares = float(updates.square().sum())
    product = (float(updates.sum(0).square().sum()) - squares) / (len(rounds) * (len(rounds) - 1))
    if product <= 0:
        return {}
    mean, lower = updates.mean(0).to(messages.sent), 0.0
    for start in messages.sent[rounds]:
        before, after = messages.unflatten(start), messages.unflatten(start + mean)
        lower += sum(target.loss(before, batch) - target.loss(after, batch) for batch in sets) / len(sets)
    return {
        "explained": (1 - error**2) * squares / len(rounds) / product,
        "decrease": lower / len(rounds) / (product / length),
    }


def _why_not(figures: dict[str, float]) -> str:
    """Return the reason why a training on the dummy samples is not used, or an empty text.

    Args:
        figures: The measured figures of the training.
    """
    if not figures["steps"]:
        return ""
    if figures["disagreement"] > DISAGREEMENT:
        return f"The two sets lead to models that differ by {figures['disagreement']:.0%} of their changes"
    if figures.get("explained", 1.0) < EXPLAINED:
        return f"They explain {figures['explained']:.0%} of what the updates of held-out rounds have in common"
    if figures.get("decrease", 1.0) < DECREASE:
        return (
            f"The client's own steps in held-out rounds lower the loss on them by {figures['decrease']:.0%} of what "
            "they should"
        )
    return ""


SPECS = (
    AttackSpec(
        name="lmra",
        factory=Distilled,
        summary="Dummy samples that explain the client's updates, then a model trained on them (LMRA, algorithm 2).",
        recovers="model",
        reads="rounds",
        fits=always("the default for any model"),
        cost=Cost.MINUTES,
        rank=1,
    ),
    AttackSpec(
        name="distilled",
        factory=Distilled,
        summary="Another name for lmra.",
        recovers="model",
        reads="rounds",
        fits=always("the default for any model"),
        cost=Cost.MINUTES,
        rank=2,
    ),
)
