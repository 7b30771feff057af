r"""Samples that are predicted from a message by a regression, which was learned from public data.

The attacker has data of the same kind as the client's (:class:`~leakgauge.core.public_data.PublicData`). It simulates
clients that hold these samples, with the settings and the defence that it knows. From their messages it learns a ridge
regression from messages to samples. The regression is applied to the client's message. This is the linear form of
Learning To Invert (Wu, Chen, Guo, Weinberger, UAI 2023), which has a neural network in place of the regression.

1. Imaginary clients get as many public samples as the client has (:mod:`leakgauge.attacks.learned.imaginary`). If the
   labels are known, the samples have these labels.
2. The samples of a batch have no order of their own. They are ordered by label, and by their first principal component
   among equal labels. The regression has one output for each place in this order.
3. The outputs are the differences from the guess of an attacker who has no message. With known labels the guess is the
   mean of each class, and otherwise the mean of all public samples.
4. Several similarities of messages and strengths of the penalty are compared by cross-validation
   (:mod:`leakgauge.attacks.learned.ridge`). No sample is in two folds.
5. If messages predict held-out samples no better than the guess, the guess is returned. It is also returned if the
   message is unlike all rehearsed messages.

If the attacker does not know the defence, the rehearsed messages get the traces of it that the message shows
(:mod:`leakgauge.attacks.learned.imitation`), and lengths of messages are not compared.

Labels that are not granted are predicted in the same way. If the prediction of all labels of a client is right for
nearly all held-out messages, the labels count as known, and the steps are repeated with them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.labels import granted_labels
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.learned.features import Kernel, Products, kernels, strangeness, within_classes
from leakgauge.attacks.learned.imaginary import (
    FEWEST,
    Cast,
    Rehearsed,
    cast,
    class_means,
    folds_for,
    ranks_of,
    rehearse,
)
from leakgauge.attacks.learned.imitation import imitation_of
from leakgauge.attacks.learned.ridge import Fit as Regression
from leakgauge.attacks.learned.ridge import fit
from leakgauge.attacks.requirements import Workload, samples_in
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.public_data import PublicData
from leakgauge.core.seeding import derive

#: Predicted labels count as known if they are right for this share of the held-out messages.
RELIABLE = 0.95
#: A message is unlike the rehearsed messages if its distance to the nearest of them is this multiple of the largest
#: such distance among them, or if its prediction differs from the guess by this multiple of the usual difference.
UNLIKE = 3.0

#: What was rehearsed with public data that are still in use, so that it is not rehearsed again for another message of
#: the same round.
_REHEARSED: WeakKeyDictionary[PublicData, dict[Any, Rehearsed]] = WeakKeyDictionary()


@dataclass(frozen=True)
class LearnedInversion(Attack):
    """A regression from messages to samples, which is learned from public data. See :mod:`.inversion`.

    Args:
        rehearsals: The largest number of imaginary clients.
    """

    uses_defences: ClassVar[bool] = True
    rehearsals: int = 1000

    def __post_init__(self) -> None:
        whole_number("rehearsals", self.rehearsals)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples.

        Args:
            observation: The message of the client.
            seed: The seed of all random draws.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        fits = needs_public_data(observation)
        if not fits.applies:
            raise MissingKnowledge(f"learned_inversion {fits.reason}")
        learning = _Learning(self, observation, seed, report)
        try:
            return learning.result()
        except KeyboardInterrupt:  # before enough clients were rehearsed
            return learning.guess()

    def workload(self, observation: Observation) -> Workload:
        """Return the size of the computation.

        Args:
            observation: The message of the client.
        """
        samples = samples_in(observation) or 1
        return Workload(samples, samples, others=12 * self.rehearsals**2)

    def forecast(self, observation: Observation) -> float | None:
        """Return the expected seconds, from one rehearsal and one small regression.

        Args:
            observation: The message of the client.
        """
        public, samples = observation.public, samples_in(observation)
        if public is None or samples is None or public.obstacle:
            return None
        count = self.rehearsals if samples > 1 else min(self.rehearsals, len(public))
        rows = torch.arange(samples) % len(public)
        began = time.perf_counter()
        for attempt in range(2):
            public.rehearse(public.samples[rows], public.targets[rows], attempt)
        each = (time.perf_counter() - began) / 2
        again = 2 if _predicts_labels(observation) and samples > 1 else 1
        small = min(count, 300)
        began = time.perf_counter()
        torch.linalg.eigh(torch.eye(small, dtype=torch.double) + torch.ones(small, small, dtype=torch.double))
        return again * (count * each + 30 * (time.perf_counter() - began) * (count / small) ** 3)

    def scaled(self, factor: float) -> Self:
        """Return a copy of the attack with more or fewer imaginary clients.

        Args:
            factor: The factor by which their number is multiplied.
        """
        return replace(self, rehearsals=max(FEWEST, round(factor * self.rehearsals)))


def _predicts_labels(observation: Observation) -> bool:
    return observation.data.classes is not None and _granted(observation) is None


def _granted(observation: Observation) -> Tensor | None:
    """Return the labels of classes that the attacker is given, one for each sample."""
    if observation.data.classes is None:
        return None
    if observation.labels is not None:
        return observation.labels.long().cpu()
    if observation.label_batches is not None:
        return observation.label_batches[0].long().cpu()
    granted = granted_labels(observation)
    return None if granted is None else granted.long().cpu()


class _Learning:
    """One run of the attack on one client."""

    def __init__(self, attack: LearnedInversion, observation: Observation, seed: int, report: Report) -> None:
        assert observation.public is not None
        samples = samples_in(observation)
        assert samples is not None
        self.attack, self.observation, self.seed, self.report = attack, observation, seed, report
        self.public: PublicData = observation.public
        self.samples, self.classes = samples, observation.data.classes
        self.middle, self.scale = _units(self.public.samples, observation.data.is_image)
        standard = (self.public.samples.float() - self.middle) / self.scale
        self.standard = replace(self.public, samples=standard)
        self.ranks = ranks_of(self.standard, self.classes)
        self.means = class_means(self.standard, self.classes) if self.classes else None
        self.imitate = imitation_of(observation)
        self.done, self.stopped, self.strange = 0, False, 0.0

    def result(self) -> Reconstruction:
        """Learn from rehearsed messages, and return the prediction for the client's message."""
        granted = _granted(self.observation)
        if granted is not None:
            order = granted.argsort(stable=True)
            clients, similar = self._rehearsed(granted[order])
            regression, samples = self._samples(clients, similar, granted[order])
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order))
            return self._finished(clients, regression, samples[back], granted)
        clients, similar = self._rehearsed(None)
        labels, reliable = self._labels(clients, similar)
        known = labels if reliable else None
        if known is not None and self.samples > 1:
            clients, similar = self._rehearsed(known)
        regression, samples = self._samples(clients, similar, known)
        return self._finished(clients, regression, samples, labels)

    def guess(self) -> Reconstruction:
        """Return the guess of an attacker that was interrupted before it learned anything."""
        granted = _granted(self.observation)
        mean = self.standard.samples.flatten(1).mean(0).expand(self.samples, -1)
        samples = mean if granted is None or self.means is None else self.means[granted.to(mean.device)]
        labels = granted
        if granted is None and self.classes is not None:
            labels = rounded(self._shares(self.classes)[None], self.samples)[0]
        words = f"interrupted after {self.done:,} rehearsed clients, and the guess without the message is returned"
        outcome = Outcome("interrupted", max(0, self.done - 1), words)
        return Reconstruction(self._shaped(samples), labels, outcome, loss=1.0)

    def _shares(self, classes: int) -> Tensor:
        """Return the number of public samples of each class."""
        return torch.bincount(self.public.targets.long().cpu(), minlength=classes).double()

    def _shaped(self, values: Tensor) -> Tensor:
        """Return samples in the shape and the number type of the client's samples, with pixels in [0, 1]."""
        like = next(iter(self.observation.sent.values()))
        samples = values.reshape(-1, *self.observation.data.shape) * self.scale + self.middle
        return (samples.clamp(0, 1) if self.observation.data.bounded else samples).to(like.dtype)

    def _rehearsed(self, labels: Tensor | None) -> tuple[Cast, list[Kernel]]:
        """Return imaginary clients, and the similarities of their messages and of the observed message."""
        fixed = labels if self.samples > 1 else None
        clients = cast(self.public, self.attack.rehearsals, self.samples, fixed, self.ranks, self.seed)
        before, total = self.done, self.done + len(clients)

        def count(number: int) -> None:
            self.done = before + number
            self.report(self.done, total + 1, math.nan)  # the regression is one more step

        key = self.attack, self.samples, None if fixed is None else tuple(fixed.tolist()), self.seed
        memory = _REHEARSED.setdefault(self.public, {}) if self.imitate is None else {}
        done = memory.get(key) or rehearse(self.public, clients, self.seed, self.imitate, count)
        if not done.stopped:
            memory[key] = done
        self.stopped |= done.stopped
        products = Products.of(done.messages, done.sketch(self.observation.difference()), done.sketch.sizes)
        self.strange = strangeness(products)
        return done.clients, kernels(products, directions_only=self.observation.defences is None)

    def _samples(self, clients: Cast, similar: list[Kernel], labels: Tensor | None) -> tuple[Regression, Tensor]:
        """Return the regression for samples, and the samples that it predicts."""
        device = self.public.samples.device
        values = self.standard.samples.flatten(1)[clients.rows.to(device)]
        if labels is None or self.means is None:
            guess = values.mean((0, 1)).expand(self.samples, -1)
            rest = values - guess
        else:
            guess = self.means[labels.to(device)]
            rest = values - self.means[clients.targets.to(device)]
            if self.samples == 1:
                similar = [*similar, *(within_classes(one, clients.targets, labels) for one in similar)]
        regression = fit(similar, rest.flatten(1), clients.folds.to(device), derive(self.seed, "samples"))
        samples = guess.clone()
        if self._usable(regression):
            samples = guess + regression.predicted.reshape(guess.shape).to(guess)
        return regression, self._shaped(samples)

    def _labels(self, clients: Cast, similar: list[Kernel]) -> tuple[Tensor | None, bool]:
        """Return the predicted labels or targets, and whether predicted labels count as known."""
        device = self.public.samples.device
        targets = clients.targets.to(device)
        if self.classes is None:
            if not targets.is_floating_point():
                return None, False
            middle = targets.flatten(1).double().mean(0)
            regression = fit(similar, targets.flatten(1) - middle, clients.folds.to(device), self.seed)
            found = middle + (regression.predicted if self._usable(regression) else 0.0)
            return found.reshape(targets.shape[1:]).float(), False
        counts = torch.nn.functional.one_hot(targets.long(), self.classes).sum(1).double()
        middle = counts.mean(0)
        regression = fit(similar, counts - middle, clients.folds.to(device), self.seed)
        found = middle + (regression.predicted if self._usable(regression) else 0.0)
        labels = rounded(found[None], self.samples)[0]
        if regression.held_out is None or not self._usable(regression):
            return labels, False
        right = (rounded(middle + regression.held_out, self.samples) == targets.sort(1).values.cpu()).all(1)
        return labels, float(right.double().mean()) >= RELIABLE

    def _usable(self, regression: Regression) -> bool:
        """Return whether a regression explains held-out messages, and the message is like the rehearsed ones."""
        return regression.explains and regression.reach <= UNLIKE and self.strange <= UNLIKE

    def _finished(
        self, clients: Cast, regression: Regression, samples: Tensor, labels: Tensor | None
    ) -> Reconstruction:
        """Return the result, with an outcome in words."""
        count, last = len(clients), max(0, self.done - 1)
        if self.stopped:
            words = f"interrupted after {count:,} rehearsed clients, and what was learned from them is returned"
            outcome = Outcome("interrupted", last, words)
        elif not regression.explains:
            words = (
                f"the message adds nothing to the public data, so the guess is returned ({count:,} rehearsed messages "
                "predict the samples of held-out public clients no better than the guess)"
            )
            outcome = Outcome("guess", last, words)
        elif not self._usable(regression):
            words = (
                f"the message is unlike all {count:,} rehearsed messages, so the guess is returned (the attacker does "
                "not know what the client did)"
            )
            outcome = Outcome("guess", last, words)
        else:
            words = (
                f"learned from {count:,} rehearsed clients ({regression.kernel} kernel). For held-out public clients "
                f"the squared error is {regression.error:.0%} of that of the guess"
            )
            outcome = Outcome("finished", last, words)
        self.report(self.done + 1, self.done + 1, regression.error)
        return Reconstruction(samples, labels, outcome, loss=min(1.0, regression.error))


def _units(samples: Tensor, pictures: bool) -> tuple[Tensor, Tensor]:
    """Return the mean and the spread of the values in which errors are measured.

    Each column of a table, and each value of a series, counts by its own spread. Pixels count alike.

    Args:
        samples: The public samples.
        pictures: Whether the samples are pictures.
    """
    values = samples.float()
    if pictures:
        return values.new_zeros(()), values.new_ones(())
    spread = values.std(0)
    return values.mean(0), torch.where(spread > 0, spread, torch.ones_like(spread))


def rounded(counts: Tensor, samples: int) -> Tensor:
    """Return labels whose numbers are near to given numbers of samples in each class, sorted, (N, samples).

    >>> rounded(torch.tensor([[1.7, 0.1, 1.2]]), 3)
    tensor([[0, 0, 2]])

    Args:
        counts: The predicted number of samples of each class, (N, classes).
        samples: The number of samples.
    """
    counts = counts.clamp(min=0).cpu()
    counts = counts * samples / counts.sum(1, keepdim=True).clamp(min=1e-12)
    whole = counts.floor()
    left = samples - whole.sum(1)
    ranks = (counts - whole).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    whole = whole + (ranks < left[:, None])
    rows = [torch.repeat_interleave(torch.arange(counts.shape[1]), row.long())[:samples] for row in whole]
    return torch.stack(rows)


def needs_public_data(observation: Observation) -> Fit:
    """Decide whether an attacker can learn from public data.

    Args:
        observation: The message of the client.
    """
    public, samples = observation.public, samples_in(observation)
    if samples is None:
        return Fit(False, "needs the client's samples to be counted, and their number is unknown")
    if public is None:
        return Fit(False, "needs public data of the same kind, which the attacker does not have")
    if public.obstacle:
        return Fit(False, public.obstacle)
    if not folds_for(len(public), samples):
        needed = max(FEWEST, 2 * samples)
        return Fit(False, f"needs at least {needed:,} public samples for this client, and there are {len(public):,}")
    return Fit(True, f"the attacker has {len(public):,} public samples from which it learns")


def learned_inversion(*, rehearsals: int = 1000) -> LearnedInversion:
    """Return an attack that learns from public data how messages show samples.

    It is the linear form of Learning To Invert (Wu, Chen, Guo, Weinberger, UAI 2023), which works with any defence that
    the attacker can rehearse (:mod:`leakgauge.attacks.learned.inversion`).

    Args:
        rehearsals: The largest number of imaginary clients whose messages the attack learns from.
    """
    return LearnedInversion(rehearsals)


SPEC = AttackSpec(
    name="learned_inversion",
    factory=learned_inversion,
    summary="Learned inversion with public data (the linear form of Wu et al. 2023), for any defence.",
    fits=needs_public_data,
    cost=Cost.SECONDS,
    rank=90,
    audit={"rehearsals": 1000},
    needs_public=True,
)
