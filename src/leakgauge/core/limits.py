"""The limits of every number in a training recipe, in a data description and in an observation.

Such numbers may come from a file or from a client, so they are checked before any computation with them. The limits lie
far beyond real federations. They keep sums within 64 bits, factors within the range of floats, and loops over local
steps short. The memory of an attack is checked separately (:mod:`leakgauge.attacks.requirements`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from leakgauge.core.checks import finite, whole_number
from leakgauge.core.errors import InvalidInput, shown

#: The largest number of batches on which a client trains in one round.
MOST_BATCHES = 1_000_000
#: The largest number of values in one sample.
MOST_VALUES = 10**9
#: The largest number of dimensions of a sample.
MOST_DIMENSIONS = 8
#: The largest factor by which a schedule multiplies the learning rate.
MOST_FACTOR = 1e6
#: The largest number of characters in a name, such as that of a client, and in a text, such as a defence.
LONGEST_NAME, LONGEST_TEXT = 1000, 10_000
#: The largest number of defences of one client.
MOST_DEFENCES = 100


@dataclass(frozen=True)
class Limit:
    """The range of one number.

    Args:
        least: The smallest value.
        most: The largest value.
        whole: Whether only whole numbers are valid.
        below: Whether ``most`` itself is not valid.
    """

    least: float
    most: float
    whole: bool = False
    below: bool = False

    def checked(self, name: str, value: object) -> float:
        """Return the value if it lies within the limits, and raise an error otherwise.

        Args:
            name: The name of the number, for the error message.
            value: The value to check. Booleans are not accepted.
        """
        number = whole_number(name, value, at_least=int(self.least)) if self.whole else finite(name, value)
        if self.least <= number <= self.most and not (self.below and number == self.most):
            return number
        raise InvalidInput(f"{name} {self._rule(number)}, {'but is' if number < 0 else 'not'} {shown(number)}")

    def _rule(self, number: float) -> str:
        """Return the part of the rule that a number breaks, in words."""
        if self.most == 1:
            return "must lie in [0, 1)" if self.below else "must lie in [0, 1]"
        if number > self.most:
            return f"must be at most {self.most:,}" if self.whole else f"must be at most {self.most:g}"
        if self.least > 0:
            return "must be above 0" if number <= 0 else f"must be at least {self.least:g}"
        return "must not be negative"


def _whole(most: float, least: int = 1) -> Limit:
    return Limit(least, most, whole=True)


_SHARE = Limit(0, 1, below=True)

#: The limits of the numbers in :class:`~leakgauge.core.local_training.LocalTraining`.
RECIPE: dict[str, Limit] = {
    "samples": _whole(10**9),
    "batch_size": _whole(10**9),
    "accumulation": _whole(10**9),
    "epochs": _whole(10**6),
    "local_steps": _whole(MOST_BATCHES),
    "lr": Limit(1e-12, 1e6),
    "eps": Limit(1e-30, 1e3),
    "momentum": _SHARE,
    "dampening": Limit(0, 1),
    "weight_decay": Limit(0, 1e6),
    "clip_norm": Limit(0, 1e12),
    "proximal": Limit(0, 1e6),
    "label_smoothing": _SHARE,
}
#: A decay rate of Adam.
BETA = _SHARE
#: The limits of the numbers in :class:`~leakgauge.core.data_spec.DataSpec`.
SIZE, CLASSES = _whole(MOST_VALUES), _whole(10**7)
MEAN, STD = Limit(-1e30, 1e30), Limit(1e-30, 1e30)
#: The largest number of rounds in which a model is trained, and of local epochs in a configuration.
MOST_ROUNDS = 100_000
#: The limits of a seed.
SEED = Limit(-(2**63), 2**63 - 1, whole=True)
#: The limits of the index of a round and of the number of samples in a class.
ROUND, COUNT = _whole(10**12, least=0), _whole(RECIPE["samples"].most, least=0)


def check_batches(samples: int, batch_size: int, epochs: int) -> None:
    """Raise an error if a client would train on more batches in one round than anybody could simulate.

    Args:
        samples: The number of samples.
        batch_size: The number of samples in a batch.
        epochs: The number of passes over the samples.
    """
    batches = -(-samples // batch_size) * epochs
    if batches > MOST_BATCHES:
        raise InvalidInput(
            f"{samples:,} samples in batches of {batch_size:,} for {epochs:,} epochs are {batches:,} local batches, "
            f"more than the limit of {MOST_BATCHES:,}. Correct samples, batch_size or epochs."
        )


def check_shape(shape: tuple[int, ...]) -> None:
    """Raise an error if a sample has too many dimensions or values.

    Args:
        shape: The shape of one sample, as positive whole numbers.
    """
    if len(shape) > MOST_DIMENSIONS:
        raise InvalidInput(f"a sample's shape may have up to {MOST_DIMENSIONS} sizes, not {len(shape)}")
    if prod(shape) > MOST_VALUES:
        raise InvalidInput(f"a sample of shape {shape} has more values than the limit of {MOST_VALUES:,}")


def check_text(name: str, text: str, longest: int = LONGEST_TEXT) -> None:
    """Raise an error if a text is too long.

    Args:
        name: The name of the text, for the error message.
        text: The text.
        longest: The largest number of characters.
    """
    if len(text) > longest:
        raise InvalidInput(f"{name} may have up to {longest:,} characters, but has {len(text):,}")
