"""The chance level: what an attacker gets *without* the update.

A PSNR of 16 means nothing by itself. A blind attacker has three kinds of guess for a client's samples, each
paired and measured like a reconstruction: the mean of reference samples; a blank sample (a black, grey or
white image, the zero row of a normalised table); random reference samples, averaged over several draws. Each
metric takes its best guess, in the attacker's favour. Labels are in :mod:`leakgauge.evaluation.label_chance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.measure import Direction
from leakgauge.core.truth import Truth
from leakgauge.evaluation.ruler import Quality, Ruler

DRAWS = 5

NO_REFERENCE = (
    "There are no reference samples, so the chance level comes from blank samples alone; "
    "an attacker who knows samples of the same kind can guess better."
)


@dataclass(frozen=True)
class Chance:
    """The value that the best blind guess reaches, and which guess that is."""

    value: float
    source: str


@dataclass(frozen=True, eq=False)
class Guess:
    """One kind of blind guess, measured once or over several draws; ``rows`` are the references drawn."""

    source: str
    qualities: tuple[Quality, ...]
    rows: tuple[Tensor, ...] = ()

    def value(self, metric: str) -> float:
        """The mean over originals, then over draws."""
        return sum(float(quality.values[metric].mean()) for quality in self.qualities) / len(self.qualities)


def best(levels: Mapping[str, float], direction: Direction) -> Chance:
    """The guess that serves the attacker most.

    >>> best({"mean": 14.2, "blank": 9.5}, "higher")
    Chance(value=14.2, source='mean')
    """
    choose = max if direction == "higher" else min
    source = choose(levels, key=lambda name: levels[name])
    return Chance(levels[source], source)


def other_samples(truth: Truth) -> tuple[Tensor | None, Tensor | None]:
    """The reference samples and their targets, without images that the client itself has.

    Rows of a table are kept: two people can share a row, whereas an image equal to the last bit is the
    client's own, and guessing it would be no guess.
    """
    samples, targets = truth.reference_inputs, truth.reference_targets
    if samples is None:
        return None, targets
    if targets is not None and len(targets) != len(samples):
        raise InvalidInput(f"the truth has {len(samples)} reference samples but {len(targets)} targets of them")
    if truth.data.is_image:
        own = {image.tobytes() for image in truth.inputs.detach().cpu().float().numpy()}
        other = [image.tobytes() not in own for image in samples.detach().cpu().float().numpy()]
        keep = torch.tensor(other, dtype=torch.bool)
        samples = samples[keep]
        targets = None if targets is None else targets[keep]
    return (samples, targets) if len(samples) else (None, None)


def draw(available: int, count: int, draws: int, seed: int) -> tuple[Tensor, ...]:
    """Random rows, all different where there are enough, for each of several draws.

    >>> [len(rows) for rows in draw(available=10, count=3, draws=2, seed=0)]
    [3, 3]
    """
    generator = torch.Generator().manual_seed(seed)
    if available < count:
        return tuple(torch.randint(available, (count,), generator=generator) for _ in range(draws))
    return tuple(torch.randperm(available, generator=generator)[:count] for _ in range(draws))


def blind_guesses(
    ruler: Ruler, reference: Tensor | None, *, count: int | None = None, draws: int = DRAWS, seed: int = 0
) -> list[Guess]:
    """Every kind of blind guess for the ruler's originals, measured.

    ``count`` is how many random samples a draw has: as many as the attack returned, since more tries make a
    good pair likelier.
    """
    originals = ruler.originals.detach().cpu()

    def same(source: str, sample: Tensor) -> Guess:
        return Guess(source, (ruler(sample.expand_as(originals)),))

    if ruler.spec.is_image:
        tones = {"black": 0.0, "grey": 0.5, "white": 1.0}
        low = 0.0 if ruler.spec.bounded else float(originals.min())
        guesses = [
            same(f"{name} image", torch.full_like(originals[:1], low + tone * ruler.data_range))
            for name, tone in tones.items()
        ]
    else:
        guesses = [same("blank row", ruler.spec.denormalise(torch.zeros_like(originals[:1])))]
    if reference is not None:
        reference = reference.detach().cpu()
        guesses.append(same("mean of other samples", reference.double().mean(0, keepdim=True)))
        rows = draw(len(reference), count or len(originals), draws, seed)
        guesses.append(Guess("random other samples", tuple(ruler(reference[one]) for one in rows), rows))
    return guesses
