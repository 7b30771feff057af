r"""The separation of sums over samples into samples, for samples that are bags of words or tokens.

The gradient of a layer that gets word counts, or of an embedding whose rows are added up, has one vector for each word.
The vector of word :math:`w` is

.. math:: m_w = \sum_i c_{iw}\, g_i ,

where :math:`c_{iw}` says how often sample :math:`i` has the word, and :math:`g_i` is the same for all words of the
sample. Most words of a large vocabulary occur in one sample only. The vectors of all words that only sample :math:`i`
has are therefore multiples of :math:`g_i`, and several words agree on it. Every other vector is then a sum of a few of
the :math:`g_i` with small whole numbers. This works for more samples than the vectors have dimensions, because whole
numbers are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor

#: For each number of samples that share a word, the largest count of the word in one of them.
COUNTS = {1: 8, 2: 4, 3: 2}
#: The largest number of sums that are compared with a vector at a time.
MOST_SUMS = 300_000
#: A pair of samples with larger counts than this does not explain the vector that several words share.
COMMON = 2


@dataclass(frozen=True, eq=False)
class Bags:
    """Samples as bags of words.

    Args:
        amounts: How often each sample has each word, (samples, words). Whole numbers, or real numbers in unknown units
            of each sample.
        parts: The vector :math:`g_i` of each sample, (samples, dimensions).
        explained: Whether the vector of each word is explained by these samples, (words,).
    """

    amounts: Tensor
    parts: Tensor
    explained: Tensor


def whole_bags(vectors: Tensor, samples: int, tolerance: float) -> Bags:
    """Separate the vectors of words whose counts are whole numbers.

    Args:
        vectors: The vector of each word, (words, dimensions).
        samples: The number of samples.
        tolerance: The relative error of the vectors.
    """
    limit = tolerance * vectors.norm(dim=1).amax()
    parts = vectors[:0]
    for group in _by_agreement(vectors, limit):
        if len(parts) == samples:
            break
        vector = vectors[group].mean(0)
        if not _is_sum(vector, parts, limit):
            parts = torch.cat([parts[~_multiples(parts, vector, limit)], vector[None]])
    return _counted(vectors, parts, limit, _independent(parts, tolerance))


def _independent(parts: Tensor, tolerance: float) -> bool:
    """Return whether the vectors of all samples are linearly independent, beyond their errors."""
    return len(parts) > 0 and int(torch.linalg.matrix_rank(parts, rtol=10 * tolerance)) == len(parts)


def _counted(vectors: Tensor, parts: Tensor, limit: Tensor, independent: bool) -> Bags:
    """Return how often each sample has each word, for samples with known vectors."""
    amounts = vectors.new_zeros(len(parts), len(vectors))
    explained = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
    if independent:
        counts = torch.linalg.lstsq(parts.T, vectors.T).solution.T.round().clamp_min(0)
        explained = (vectors - counts @ parts).norm(dim=1) <= limit * counts.sum(1)
        amounts = (counts * explained[:, None]).T
    for stage, counts in enumerate(() if independent else _few_samples(parts)):
        words = torch.nonzero(~explained).flatten()
        if not len(words) or (stage and 3 * len(words) > 2 * len(vectors)):
            break  # if few words belong to one sample, the counts are no whole numbers
        distance = _distances(vectors[words], counts @ parts)
        hits = distance <= limit * counts.count_nonzero(1)
        first = torch.where(hits, torch.arange(len(counts), device=vectors.device), len(counts)).amin(1)
        found = first < len(counts)
        amounts[:, words[found]] = counts[first[found]].T
        explained[words[found]] = True
    return Bags(amounts, parts, explained)


def real_bags(vectors: Tensor, samples: int, tolerance: float) -> Bags:
    """Separate the vectors of words whose amounts are any positive numbers, in unknown units of each sample.

    A word of one sample is recognised by its direction. A word of two samples is separated if the vectors have at least
    three dimensions, and a word of more samples if the parts of all samples are linearly independent. If all vectors
    have the same direction, several samples cannot be told apart, and none is returned.

    Args:
        vectors: The vector of each word, (words, dimensions).
        samples: The number of samples.
        tolerance: The relative error of the vectors.
    """
    lengths = vectors.norm(dim=1)
    units = vectors / lengths.clamp_min(1e-300)[:, None]
    groups = _by_agreement(units, torch.tensor(3 * tolerance))[:samples]
    parts = torch.stack([units[group].mean(0) for group in groups]) if groups else units[:0]
    amounts = vectors.new_zeros(len(parts), len(vectors))
    explained = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
    rank = int(torch.linalg.matrix_rank(vectors, rtol=10 * tolerance)) if len(vectors) else 0
    if rank < 2 and samples > 1:  # all samples have the same direction
        return Bags(vectors.new_zeros(0, len(vectors)), vectors[:0], torch.zeros(len(vectors), dtype=torch.bool))
    every = [range(len(parts))] if _independent(parts, tolerance) else []
    pairs = combinations(range(len(parts)), 2) if rank > 2 else ()
    for chosen in map(list, [*combinations(range(len(parts)), 1), *pairs, *every]):
        solved = torch.linalg.lstsq(parts[chosen].T, vectors.T).solution
        rest = (vectors - solved.T @ parts[chosen]).norm(dim=1)
        hits = ~explained & (rest <= 10 * tolerance * lengths) & (solved >= -10 * tolerance * lengths).all(0)
        amounts[torch.tensor(chosen)[:, None], torch.nonzero(hits).flatten()] = solved[:, hits].clamp_min(0)
        explained |= hits
    return Bags(amounts, parts, explained)


def _by_agreement(vectors: Tensor, limit: Tensor) -> list[Tensor]:
    """Return the indices of the vectors of each group of equal vectors, the largest group first."""
    equal = _distances(vectors, vectors) <= limit
    groups: list[Tensor] = []
    left = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    while bool(left.any()):
        sizes = (equal & left[None]).sum(1).masked_fill(~left, -1)
        best = int(sizes.argmax())
        members = equal[best] & left
        members[best] = True
        groups.append(torch.nonzero(members).flatten())
        left &= ~members
    return groups


def _is_sum(vector: Tensor, parts: Tensor, limit: Tensor) -> bool:
    """Return whether a vector is a multiple of one part, or a sum of two parts with small counts."""
    for chosen, counts in _sums(len(parts), most=2):
        small = counts[(counts <= COMMON).all(1)] if len(chosen) == 2 else counts
        distance = (vector - small.to(vector) @ parts[chosen]).norm(dim=1)
        if bool((distance <= limit).any()):
            return True
    return False


def _multiples(parts: Tensor, vector: Tensor, limit: Tensor) -> Tensor:
    """Return which parts are multiples of a vector by a whole number above 1."""
    factors = torch.arange(2, COUNTS[1] + 1).to(vector)
    if not len(parts):
        return torch.zeros(0, dtype=torch.bool, device=vector.device)
    return (_distances(parts, factors[:, None] * vector) <= limit).any(1)


def _sums(parts: int, most: int) -> Iterator[tuple[list[int], Tensor]]:
    """Yield groups of parts, the smallest first, with all counts that their words may have."""
    for size in range(1, min(most, parts) + 1):
        counts = torch.tensor(list(product(range(1, COUNTS[size] + 1), repeat=size)))
        for chosen in combinations(range(parts), size):
            yield list(chosen), counts[counts.sum(1).argsort(stable=True)]


def _few_samples(parts: Tensor) -> Iterator[Tensor]:
    """Yield tables of the counts that a word may have in each sample, first those with few samples and small counts."""
    number = len(parts)
    for size in COUNTS:
        groups = [(chosen, counts) for chosen, counts in _sums(number, size) if len(chosen) == size]
        if not groups or sum(len(counts) for _, counts in groups) > MOST_SUMS:
            continue
        tables = [
            parts.new_zeros(len(counts), number).index_copy(1, torch.tensor(chosen), counts.to(parts))
            for chosen, counts in groups
        ]
        yield _smallest_first(torch.cat(tables))
    most = int(MOST_SUMS ** (1 / number)) - 1
    if most < 1:
        return
    grid = torch.cartesian_prod(*[torch.arange(most + 1)] * number).reshape(-1, number).to(parts)
    yield _smallest_first(grid)
    if len(grid) * number < 4 * MOST_SUMS:
        yield _smallest_first((grid[:, None] + torch.eye(number).to(parts)).reshape(-1, number))


def _smallest_first(counts: Tensor) -> Tensor:
    return counts[counts.sum(1).argsort(stable=True)]


def _distances(one: Tensor, other: Tensor) -> Tensor:
    """Return all distances between two sets of vectors. The fast way of PyTorch would lose half of the digits."""
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
