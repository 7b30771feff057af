"""The chance level of samples, which is the value of a metric that an attacker reaches *without* the update.

A PSNR of 16 alone means nothing. It must be compared with the guesses of a blind attacker, who has no update. There are
three kinds of blind guess for the samples of a client:

- the mean of reference samples,
- a blank sample, which is a black, grey or white image, or a normalised row of zeros,
- random reference samples, drawn several times. The metric is then averaged over the draws.

Each guess is paired and measured like a reconstruction. The chance level of a metric is the value of the guess that is
best for the attacker. The chance level of labels is in :mod:`leakgauge.evaluation.label_chance`.
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

#: The number of draws of random reference samples.
DRAWS = 5

#: The note that a score has if there are no reference samples.
NO_REFERENCE = (
    "There are no reference samples, so the chance level comes from blank samples alone. "
    "An attacker who knows samples of the same kind can guess better."
)


@dataclass(frozen=True)
class Chance:
    """The chance level of one metric.

    Args:
        value: The value of the best blind guess.
        source: The description of the best blind guess.
    """

    value: float
    source: str


@dataclass(frozen=True, eq=False)
class Guess:
    """The measured quality of one kind of blind guess. A random guess is measured over several draws.

    Args:
        source: The description of the kind of guess.
        qualities: The measured quality of each draw.
        rows: The indices of the reference samples of each draw. The tuple is empty if the guess is not random.
    """

    source: str
    qualities: tuple[Quality, ...]
    rows: tuple[Tensor, ...] = ()

    def value(self, metric: str) -> float:
        """Return the mean of a metric over all originals and all draws."""
        return sum(float(quality.values[metric].mean()) for quality in self.qualities) / len(self.qualities)


def best(levels: Mapping[str, float], direction: Direction) -> Chance:
    """Return the value and the source of the guess that is best for the attacker.

    Args:
        levels: A dictionary from the source of each guess to the value of the guess.
        direction: ``"higher"`` if high values are good for the attacker, otherwise ``"lower"``.

    >>> best({"mean": 14.2, "blank": 9.5}, "higher")
    Chance(value=14.2, source='mean')
    """
    choose = max if direction == "higher" else min
    source = choose(levels, key=lambda name: levels[name])
    return Chance(levels[source], source)


def other_samples(truth: Truth) -> tuple[Tensor | None, Tensor | None]:
    """Return the reference samples and their targets, without the client's own images.

    A reference image that equals one of the client's images in every bit is left out, because it would not be a guess.
    Equal rows of a table stay, because two people can have equal rows.
    """
    samples, targets = truth.reference_inputs, truth.reference_targets
    if samples is None:
        return None, targets
    if targets is not None and len(targets) != len(samples):
        raise InvalidInput(
            f"the truth has {len(samples)} reference samples but {len(targets)} targets. Pass one target for each"
        )
    if truth.data.is_image:
        client_images = {image.tobytes() for image in truth.inputs.detach().cpu().float().numpy()}
        differs = [image.tobytes() not in client_images for image in samples.detach().cpu().float().numpy()]
        others = torch.tensor(differs, dtype=torch.bool)
        samples = samples[others]
        targets = None if targets is None else targets[others]
    return (samples, targets) if len(samples) else (None, None)


def draw(available: int, count: int, draws: int, seed: int) -> tuple[Tensor, ...]:
    """Return the indices of random rows, for each of several draws.

    Args:
        available: The number of rows to draw from.
        count: The number of rows of each draw. The rows of a draw are all different if enough rows are available.
        draws: The number of draws.
        seed: The seed of the draws.

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
    """Make every kind of blind guess for the originals, and return the measured guesses.

    Args:
        ruler: The ruler that compares samples with the originals.
        reference: Samples of the same kind that are not the client's. If it is ``None``, the only guesses are blank
            samples.
        count: The number of random samples in a draw. The default is the number of originals. Pass the number of
            samples that the attack returned, because more samples make a good pair more likely.
        draws: The number of draws of random samples.
        seed: The seed of the draws.
    """
    originals = ruler.originals.detach().cpu()

    def repeated(source: str, sample: Tensor) -> Guess:
        return Guess(source, (ruler(sample.expand_as(originals)),))

    if ruler.spec.is_image:
        tones = {"black": 0.0, "grey": 0.5, "white": 1.0}
        low = 0.0 if ruler.spec.bounded else float(originals.min())
        guesses = [
            repeated(f"{name} image", torch.full_like(originals[:1], low + tone * ruler.data_range))
            for name, tone in tones.items()
        ]
    else:
        guesses = [repeated("blank row", ruler.spec.denormalise(torch.zeros_like(originals[:1])))]
    if reference is not None:
        reference = reference.detach().cpu()
        guesses.append(repeated("mean of other samples", reference.double().mean(0, keepdim=True)))
        rows = draw(len(reference), count or len(originals), draws, seed)
        guesses.append(Guess("random other samples", tuple(ruler(reference[drawn]) for drawn in rows), rows))
    return guesses
