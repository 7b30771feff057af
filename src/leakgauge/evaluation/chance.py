"""The chance level of samples, which is the value of a metric that an attacker reaches *without* the update.

A PSNR of 16 alone means nothing. It must be compared with the guesses of a blind attacker, who has no update. There are
four kinds of blind guess for the samples of a client:

- the mean of reference samples,
- a blank sample, which is a black, grey or white image, or a normalised row of zeros,
- random reference samples,
- mixtures of random reference samples with the mean. A mixture is nearer to most samples than a random sample is.
  Mixtures also differ from each other, so for each original, one of the mixtures is near.

Random samples are drawn several times, and a metric is averaged over the draws. The best draw shows how good a guess
can be by luck, which matters if a client has few samples.

Each guess is paired with the originals and measured like a reconstruction. The chance level of a metric is the value of
the guess that is best for the attacker. The chance level of labels is in :mod:`leakgauge.evaluation.label_chance`.

A guess that differs from an image by less than one of 256 grey levels counts as an exact copy of the image. The
population already shows such an image, so no attack recovers it above chance. Images that everybody holds and images
that hardly differ between people are of this kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.measure import Direction
from leakgauge.core.truth import Truth
from leakgauge.evaluation.metrics.bags_of_tokens import commonest_tokens
from leakgauge.evaluation.metrics.pixels import PSNR_CAP
from leakgauge.evaluation.ruler import Quality, Ruler

#: The number of draws of random reference samples.
DRAWS = 5
#: The number of draws for a client with at most so many samples. Luck matters more for few samples.
FEW_DRAWS, FEW_SAMPLES = 20, 4

#: The shares of the random samples in their mixtures with the mean of the reference samples.
SHARES = (0.25, 0.5)

#: The root of the mean squared error, as a share of the data range, below which a guess counts as an exact copy.
GREY_LEVEL = 1 / 255

#: The values of an exact copy.
_EXACT = {"psnr": PSNR_CAP, "ssim": 1.0, "mse": 0.0, "lpips": 0.0}

#: The note that a score has if there are no reference samples.
NO_REFERENCE = (
    "There are no reference samples, so the chance level comes from blank samples alone. "
    "An attacker who knows samples of the same kind can guess better."
)


@dataclass(frozen=True)
class Chance:
    """The chance level of one metric, which an attacker reaches without the client's update.

    Args:
        value: The metric's value for the best guess without the update.
        source: The description of this guess.
        luck: The value that a guess without the update reaches with luck, or ``None`` if this is not known.
        luck_of_one: The value of the best single sample of any draw of any guess, or ``None`` if this is not known.
    """

    value: float
    source: str
    luck: float | None = None
    luck_of_one: float | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Guess:
    """The measured quality of one kind of guess without the update. A random guess is drawn several times.

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
        values = self.values(metric)
        return sum(values) / len(values)

    def values(self, metric: str) -> list[float]:
        """Return the mean of a metric over all originals, for each draw."""
        return [float(quality.values[metric].mean()) for quality in self.qualities]

    def about(self, chosen: Tensor) -> Guess:
        """Return the guess with the measured quality of some of the originals only.

        Args:
            chosen: Whether each original is chosen.
        """
        qualities = (
            replace(quality, values={name: value[chosen] for name, value in quality.values.items()})
            for quality in self.qualities
        )
        return replace(self, qualities=tuple(qualities))


def chance_of(guesses: Sequence[Guess], metric: str, direction: Direction) -> Chance:
    """Return the chance level of a metric from measured guesses, with the luckiest of all draws and of all samples.

    Args:
        guesses: The measured guesses.
        metric: The name of the metric.
        direction: ``"higher"`` if high values are good for the attacker, otherwise ``"lower"``.
    """
    level = best({guess.source: guess.value(metric) for guess in guesses}, direction)
    lucky = max if direction == "higher" else min
    draws = [value for guess in guesses for value in guess.values(metric)]
    values = [quality.values[metric] for guess in guesses for quality in guess.qualities]
    single = [float(value.max() if direction == "higher" else value.min()) for value in values]
    return replace(level, luck=lucky(draws), luck_of_one=lucky(single))


def best(levels: Mapping[str, float], direction: Direction) -> Chance:
    """Return the value and the source of the guess that is best for the attacker.

    Args:
        levels: A dictionary from the source of each guess to the value of the guess.
        direction: ``"higher"`` if high values are good for the attacker, otherwise ``"lower"``.

    >>> best({"mean": 14.2, "blank": 9.5}, "higher")
    Chance(value=14.2, source='mean', luck=None)
    """
    choose = max if direction == "higher" else min
    source = choose(levels, key=lambda name: levels[name])
    return Chance(levels[source], source)


def other_samples(truth: Truth) -> tuple[Tensor | None, Tensor | None]:
    """Return the reference samples and their targets, without the client's own samples.

    Two people can hold equal samples, so a reference sample that equals one of the client's samples is a legitimate
    guess. However, the reference may be a whole dataset that the client's samples were taken from. Therefore, as many
    copies of a sample are left out as the client holds, and all further copies stay.
    """
    samples, targets = truth.reference_inputs, truth.reference_targets
    if samples is None:
        return None, targets
    if targets is not None and len(targets) != len(samples):
        raise InvalidInput(
            f"the truth has {len(samples)} reference samples but {len(targets)} targets. Pass one target for each"
        )
    own = Counter(_bytes(truth.inputs))
    stays = []
    for content in _bytes(samples):
        stays.append(not own[content])
        own[content] -= not stays[-1]
    others = torch.tensor(stays, dtype=torch.bool)
    samples = samples[others]
    targets = None if targets is None else targets[others]
    return (samples, targets) if len(samples) else (None, None)


def _bytes(samples: Tensor) -> list[bytes]:
    """Return the content of each sample as bytes. Two samples are equal if all their bits are equal."""
    return [sample.tobytes() for sample in samples.detach().cpu().float().numpy()]


def draw(available: int, count: int, draws: int, seed: int) -> tuple[Tensor, ...]:
    """Draw random rows several times, and return the indices of each draw.

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
    ruler: Ruler, reference: Tensor | None, *, count: int | None = None, draws: int | None = None, seed: int = 0
) -> list[Guess]:
    """Guess the client's samples (the originals) without the update in several ways, and measure each guess.

    Args:
        ruler: The ruler that compares samples with the originals.
        reference: Samples of the same kind that are not the client's. If it is ``None``, the only guesses are blank
            samples.
        count: The number of random samples in a draw. The default is the number of originals. Pass the number of
            samples that the attack returned, because more samples make a good pair more likely.
        draws: The number of draws of random samples. By default, there are more draws for few samples.
        seed: The seed of the draws.
    """
    originals = ruler.originals.detach().cpu()

    def repeated(source: str, sample: Tensor) -> Guess:
        return Guess(source, (measured(sample.expand_as(originals)),))

    def measured(samples: Tensor) -> Quality:
        return _with_exact_copies(ruler(samples), ruler)

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
        mean = reference.double().mean(0, keepdim=True)
        guesses.append(repeated("mean of other samples", mean))
        count = count or len(originals)
        draws = draws or (FEW_DRAWS if count <= FEW_SAMPLES else DRAWS)
        rows = draw(len(reference), count, draws, seed)
        guesses.append(Guess("random other samples", tuple(measured(reference[drawn]) for drawn in rows), rows))
        if ruler.tokens:
            commonest = mean.flatten().clone()
            commonest[list(ruler.tokens)] = commonest_tokens(reference, ruler.tokens).to(mean)
            guesses.append(repeated("commonest tokens of other samples", commonest.reshape(mean.shape)))
        for share in SHARES:
            mixtures = tuple(measured(mean + share * (reference[drawn] - mean)) for drawn in rows)
            guesses.append(Guess(f"other samples mixed with their mean ({share:.0%})", mixtures))
    return guesses


def known_without_message(guesses: Sequence[Guess]) -> Tensor:
    """Return, for each original, whether a guess that is the same for everybody is an exact copy of it.

    Black slices of a scan are such images. Their exact copies would hide what an attack recovers of the other images
    in a mean over all of them. If all images are known, the result is false for all of them, because the message can
    then add nothing. It is also false for rows of a table.

    Args:
        guesses: The measured guesses.
    """
    fixed = [guess.qualities[0].values for guess in guesses if not guess.rows and len(guess.qualities) == 1]
    exact = [values["psnr"] >= PSNR_CAP if "psnr" in values else values["rows"] < 0 for values in fixed]
    known = torch.stack(exact).any(0)
    return torch.zeros_like(known) if bool(known.all()) else known


def _with_exact_copies(quality: Quality, ruler: Ruler) -> Quality:
    """Give the values of an exact copy to images that differ from their originals by less than one grey level."""
    if not ruler.spec.is_image:
        return quality
    exact = quality.values["mse"] <= (GREY_LEVEL * ruler.data_range) ** 2
    values = {
        name: value.masked_fill(exact, _EXACT[name]) if name in _EXACT else value
        for name, value in quality.values.items()
    }
    return replace(quality, values=values)
