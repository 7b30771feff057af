"""The chance level of an attacker with public data, who has no message but may know the labels.

The labels are taken to be known, also if the attacker has to infer them. What such an attacker finds above this level
is therefore more than the labels show. There are three further kinds of guess:

- the mean of the public samples with the label of each original,
- the public samples of this label that are nearest to their mean, one after another, of which the average value counts,
- the mean of all public samples, which is the best constant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.public_data import PublicData
from leakgauge.core.truth import Truth
from leakgauge.evaluation.chance import Guess
from leakgauge.evaluation.ruler import Ruler


def public_guesses(ruler: Ruler, public: PublicData, truth: Truth, *, by_label: bool = True) -> list[Guess]:
    """Guess the client's samples from public data and from the true labels, and measure each guess.

    Args:
        ruler: The ruler that compares samples with the originals.
        public: The public data.
        truth: The client's samples with their targets.
        by_label: Whether the guesses use the true labels.
    """
    samples = public.samples.detach().cpu()
    whole = samples.double().mean(0, keepdim=True)
    guesses = [Guess("mean of public samples", (ruler(whole.expand(len(truth), *truth.data.shape)),), _DRAWN)]
    groups = _groups(public.targets.detach().cpu(), truth) if by_label else None
    if groups is None:
        return guesses
    means, nearest = [], []
    for chosen in groups:
        members = samples[chosen].double() if bool(chosen.any()) else whole
        mean = members.mean(0)
        means.append(mean)
        off = truth.data.normalise(members) - truth.data.normalise(mean)
        order = off.flatten(1).square().sum(1).argsort()
        nearest.append(members[order[torch.arange(NEAREST) % len(order)]])
    typical = torch.stack(nearest, 1)
    return [
        *guesses,
        Guess("mean of public samples with the same label", (ruler(torch.stack(means)),), _DRAWN),
        Guess("public samples nearest to the mean of their label", tuple(map(ruler, typical)), _DRAWN * NEAREST),
    ]


#: The number of public samples of a label that are guessed one after another.
NEAREST = 5
#: Marks a guess that differs between clients, so that a sample which it copies does not count as known to everybody.
_DRAWN = (torch.zeros(0, dtype=torch.long),)


def _groups(targets: Tensor, truth: Truth) -> list[Tensor] | None:
    """Return which public samples have the label of each original, or ``None`` if the targets are no labels."""
    if truth.data.classes is None and truth.data.target_values is None:
        return None
    own = truth.targets.detach().cpu()
    return [(targets == target).flatten(1).all(1) if targets.dim() > 1 else targets == target for target in own]
