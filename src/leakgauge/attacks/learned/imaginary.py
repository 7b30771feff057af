"""Imaginary clients with public samples, and the messages that they would send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from leakgauge.attacks.learned.features import Sketch
from leakgauge.attacks.learned.imitation import Imitate
from leakgauge.core.errors import InvalidInput
from leakgauge.core.public_data import PublicData
from leakgauge.core.seeding import derive, generator

#: The number of folds of cross-validation. No public sample is in two folds.
FOLDS = 5
#: The smallest number of imaginary clients, and of public samples, from which an attack learns.
FEWEST = 40


@dataclass(frozen=True, eq=False)
class Cast:
    """Imaginary clients.

    Args:
        rows: The public samples of each client, in the order in which an attack returns samples, (N, samples).
        targets: The targets with which the clients train.
        folds: The fold of each client.
    """

    rows: Tensor
    targets: Tensor
    folds: Tensor

    def __len__(self) -> int:
        return len(self.rows)


def folds_for(public: int, samples: int) -> int:
    """Return the number of folds, such that a client's samples are in one fold. It is 0 for too few public samples.

    >>> folds_for(500, 8), folds_for(100, 40), folds_for(30, 1)
    (5, 2, 0)

    Args:
        public: The number of public samples.
        samples: The number of samples of a client.
    """
    if public < max(FEWEST, 2 * samples):
        return 0
    return FOLDS if public >= FOLDS * samples else 2


def ranks_of(public: PublicData, classes: int | None) -> Tensor:
    """Return the rank of each public sample in the order in which an attack returns the samples of a client.

    Classes come in their order, and numbers from small to large. Samples with equal targets are ordered along the first
    principal component of the public samples, without the differences between classes.

    Args:
        public: The public data.
        classes: The number of classes, or ``None`` for other targets.
    """
    values = public.samples.flatten(1).float()
    centred = values - (class_means(public, classes)[public.targets] if classes else values.mean(0))
    with torch.no_grad():
        _, _, directions = torch.svd_lowrank(centred, q=min(4, *centred.shape), niter=4)
    along = directions[:, 0] * directions[:, 0].sum().sign().where(directions[:, 0].sum() != 0, directions.new_ones(()))
    order = (centred @ along).argsort(stable=True)
    if public.targets.dim() == 1:
        order = order[public.targets[order].argsort(stable=True)]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device)
    return ranks


def class_means(public: PublicData, classes: int) -> Tensor:
    """Return the mean of the public samples of each class, (classes, values).

    The mean of all samples counts as one more sample of each class.

    Args:
        public: The public data.
        classes: The number of classes.
    """
    values = public.samples.flatten(1).float()
    member = torch.nn.functional.one_hot(public.targets.long(), classes).to(values)
    return (member.T @ values + values.mean(0)) / (member.sum(0) + 1)[:, None]


def cast(public: PublicData, count: int, samples: int, labels: Tensor | None, ranks: Tensor, seed: int) -> Cast:
    """Draw imaginary clients.

    A client with one sample is drawn only once for each public sample. All clients get the given labels if there are
    any. If a fold has too few samples of a class, other samples are trained with this label too.

    Args:
        public: The public data.
        count: The number of clients.
        samples: The number of samples of each client.
        labels: The labels of the samples of all clients, if they are known and the clients have several samples.
        ranks: The order of the public samples (:func:`ranks_of`).
        seed: The seed of the draws.
    """
    draw = generator(seed, "imaginary clients")
    number = folds_for(len(public), samples)
    parts = [part.sort().values for part in torch.randperm(len(public), generator=draw).chunk(number)]
    own, order = public.targets.cpu(), ranks.cpu()
    if samples == 1:
        turns = zip_longest(*(part[torch.randperm(len(part), generator=draw)].tolist() for part in parts))
        drawn = [(row, fold) for turn in turns for fold, row in enumerate(turn) if row is not None][:count]
        single = torch.tensor([[row] for row, _ in drawn])
        return Cast(single, own[single], torch.tensor([fold for _, fold in drawn]))
    rows = []
    for client in range(count):
        part = parts[client % number]
        if labels is None:
            chosen = part[torch.randperm(len(part), generator=draw)[:samples]]
            rows.append(chosen[order[chosen].argsort()])
        else:
            rows.append(_with_labels(part, own, labels, order, draw))
    chosen = torch.stack(rows)
    targets = own[chosen] if labels is None else labels.expand(count, -1)
    return Cast(chosen, targets, torch.arange(count) % number)


def _with_labels(part: Tensor, own: Tensor, labels: Tensor, order: Tensor, draw: torch.Generator) -> Tensor:
    """Return random samples of a fold with the given labels, which are sorted."""
    chosen = []
    for label, count in zip(*labels.unique(return_counts=True), strict=True):
        shuffled = part[torch.randperm(len(part), generator=draw)]
        fitting = shuffled[own[shuffled] == label]
        others = shuffled[own[shuffled] != label]
        taken = torch.cat([fitting, others])[: int(count)]
        chosen.append(taken[order[taken].argsort()])
    return torch.cat(chosen)


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """The messages of imaginary clients.

    Args:
        clients: The clients whose messages are finite.
        messages: The reduced messages, (N, values).
        sketch: The rule of the reduction.
        stopped: Whether Ctrl-C or a time limit ended the rehearsal early.
    """

    clients: Cast
    messages: Tensor
    sketch: Sketch
    stopped: bool = False


def rehearse(
    public: PublicData, clients: Cast, seed: int, imitate: Imitate | None, report: Callable[[int], None]
) -> Rehearsed:
    """Return the messages of imaginary clients.

    Args:
        public: The public data.
        clients: The clients.
        seed: The seed of the clients' random numbers.
        imitate: A function that changes each message, if the client has an unknown defence.
        report: A function that gets the number of clients so far.
    """
    kept: list[Tensor] = []
    sketch: Sketch | None = None
    stopped = False
    try:
        for client, (rows, targets) in enumerate(zip(clients.rows, clients.targets, strict=True)):
            samples, own = public.samples[rows.to(public.samples.device)], derive(seed, "rehearsal", client)
            message = public.rehearse(samples, targets.to(public.targets.device), own)
            message = message if imitate is None else imitate(message, own)
            sketch = sketch or Sketch.of(message, len(clients), derive(seed, "sketch"))
            kept.append(sketch(message))
            report(client + 1)
    except KeyboardInterrupt:
        if len(kept) < FEWEST:
            raise
        stopped = True
    assert sketch is not None
    messages = torch.stack(kept)
    finite = torch.isfinite(messages).all(1)
    rows = finite.nonzero().flatten().cpu()
    if len(rows) < FEWEST:
        raise InvalidInput("the training of the imaginary clients diverges, so nothing can be learned from them")
    left = Cast(clients.rows[rows], clients.targets[rows], clients.folds[rows])
    return Rehearsed(left, messages[finite], sketch, stopped)
