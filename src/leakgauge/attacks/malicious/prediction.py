r"""The number of samples that traps are expected to return, before any client is attacked.

A layer with :math:`K` traps of equal chance holds a sample alone in its trap, among :math:`B` samples, with the
probability

.. math:: (1 - 1/K)^{B-1}

(Fowl et al. 2022). If the traps are split among several directions, each sample falls into one trap of each direction.
A sample that is alone in one direction is known, and is subtracted in the others, where it may leave another sample
alone. Such peeling is the decoding of an invertible Bloom lookup table (Goodrich, Mitzenmacher 2011). With three
directions, it returns nearly all samples while :math:`B < 0.8 K`. For larger batches, a server
gives up most samples. Its lowest thresholds lie so high that about :math:`1.8 K / 3` samples are above them, and the
directions are similar, so that these are mostly the same samples in all directions. The shares are simulated, because
the formula for one direction does not count what peeling adds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

#: The number of simulated clients.
TRIALS = 24
#: The number of draws from which the thresholds of a simulation are taken.
DRAWS = 20_000


@dataclass(frozen=True)
class Split:
    """The number of directions among which traps are split, and the places of their thresholds.

    Args:
        directions: The number of directions.
        common: The correlation of a sample's places along two directions.
        load: The expected number of samples in a trap. The lowest thresholds lie so low that every sample is caught, if
            there are fewer samples.
    """

    directions: int = 1
    common: float = 0.0
    load: float = float("inf")

    def caught(self, traps: int, samples: int) -> float:
        """Return the share of samples that are above the lowest threshold of a direction.

        Args:
            traps: The number of traps in all directions together.
            samples: The number of samples in the batch.
        """
        return min(1.0, self.load * max(1, traps // self.directions) / max(1, samples))


#: The splits from which a server chooses: all samples are caught, or as many as peeling can return.
SPLITS = (
    Split(1),
    Split(2),
    Split(3),
    Split(4),
    Split(3, 0.8, 1.5),
    Split(3, 0.9, 1.8),
    Split(3, 0.95, 1.8),
)

#: The loads of traps with a direction of their own.
LOADS = (0.5, 1.0, 1.5, 2.0)


def clean_share(traps: int, samples: int) -> float:
    """Return the expected share of a client's samples that are alone in a trap, if all traps have the same chance.

    >>> round(clean_share(100, 16), 2), round(clean_share(1024, 64), 2)
    (0.86, 0.94)

    Args:
        traps: The number of traps.
        samples: The number of samples in the batch.
    """
    return float((1 - 1 / max(1, traps)) ** (max(1, samples) - 1))


@functools.cache
def peeled_share(traps: int, samples: int, split: Split) -> float:
    """Return the expected share of samples that peeling returns, by simulation of normally distributed samples.

    >>> peeled_share(99, 48, Split(3)) > clean_share(99, 48)
    True

    Args:
        traps: The number of traps in all directions together.
        samples: The number of samples in the batch.
        split: How the traps are split among directions.
    """
    if split == Split(1):
        return clean_share(traps, samples)
    draw, count = np.random.default_rng(0), split.directions
    each, caught = max(1, traps // count), split.caught(traps, samples)
    levels = 1 - caught + caught * np.arange(each) / each
    thresholds = np.quantile(draw.standard_normal(DRAWS), levels)
    thresholds[0] = thresholds[0] if caught < 1 else -np.inf
    shares = []
    for _ in range(TRIALS):
        shared, own = draw.standard_normal((samples, 1)), draw.standard_normal((samples, count))
        places = np.sqrt(split.common) * shared + np.sqrt(1 - split.common) * own
        inside = np.searchsorted(thresholds, places, side="right") - 1
        traps_of = np.where(inside >= 0, inside + each * np.arange(count), each * count)
        shares.append(_peeled(traps_of, each * count))
    return float(np.mean(shares))


def _peeled(traps_of: np.ndarray, traps: int) -> float:
    """Return the share of samples that peeling returns, for the trap of each sample in each direction."""
    left = np.ones(len(traps_of), dtype=bool)
    while True:
        counts = np.bincount(traps_of[left].ravel(), minlength=traps + 1)
        alone = left & ((counts[traps_of] == 1) & (traps_of < traps)).any(1)
        if not alone.any():
            return float(1 - left.mean())
        left &= ~alone


@functools.cache
def batched_share(traps: int, samples: int, batch: int, load: float) -> float:
    """Return the expected share of samples that traps return if a client trains on several batches, by simulation.

    Each trap has a direction of its own, and is closed by the first batch that opens it. Nothing is subtracted, because
    the attacker does not know which batch this was.

    Args:
        traps: The number of traps.
        samples: The number of samples.
        batch: The number of samples in a batch.
        load: The expected number of samples above the threshold of a trap.
    """
    draw, shares = np.random.default_rng(0), []
    batches = np.arange(samples) // max(1, batch)
    for _ in range(TRIALS):
        opens = draw.random((samples, traps)) < min(1.0, load / max(1, samples))
        first = np.where(opens, batches[:, None], samples).min(0)
        seen = opens & (batches[:, None] == first)
        shares.append(float((seen & (seen.sum(0) == 1)).any(1).mean()))
    return float(np.mean(shares))


def best_split(traps: int, samples: int, *, agreement: bool = False, batch: int | None = None) -> Split:
    """Return the split of traps among directions that is expected to return the most samples.

    Args:
        traps: The number of traps in all directions together.
        samples: The number of samples in the batch.
        agreement: Whether the attacker recognises a single sample only by the agreement of two directions. The
            directions must then be several, and must not be similar.
        batch: The number of samples in a batch, if the client trains on several. Each trap then gets a direction of its
            own, because neighbours along one direction would all be closed by the first batch.
    """
    choices = [one for one in SPLITS if traps // one.directions >= 2]
    if batch is not None:
        load = max(LOADS, key=lambda load: batched_share(traps, samples, batch, load))
        return Split(traps, 0.0, load)
    if agreement:
        choices = [one for one in choices if one.directions > 1 and not one.common]
    return max(
        choices, key=lambda one: (round(peeled_share(traps, samples, one), 2), one == Split(3)), default=Split(1)
    )
