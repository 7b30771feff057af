"""Sums over samples are separated into samples, and agree with a plain search over all counts."""

from itertools import product

import pytest
import torch

from leakgauge.attacks.analytic.bags import real_bags, whole_bags


def texts(samples, words, dimensions, seed, length=8):
    """Return random counts of words, in which each sample has words of its own, and their vectors."""
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randint(words, (samples, length), generator=draw)
    counts = torch.zeros(samples, words, dtype=torch.double)
    counts.scatter_add_(1, drawn, torch.ones(samples, length, dtype=torch.double))
    own = torch.eye(samples, dtype=torch.double).repeat_interleave(3, 1)
    counts = torch.cat([counts, own], 1)
    counts = counts[:, counts.any(0)]
    parts = torch.randn(samples, dimensions, generator=draw, dtype=torch.double)
    return counts, parts


def in_order(rows, like):
    """Return rows in the order of the nearest rows of another matrix."""
    return rows[torch.cdist(like, rows).argmin(1)]


@pytest.mark.parametrize(("samples", "dimensions"), [(1, 2), (3, 1), (4, 2), (6, 2), (8, 12)])
def test_counts_come_back_exactly(samples, dimensions):
    counts, parts = texts(samples, 60, dimensions, samples)
    bags = whole_bags(counts.T @ parts, samples, 1e-9)
    assert bool(bags.explained.all())
    assert torch.equal(in_order(bags.amounts, counts), counts)


def test_shared_words_agree_with_a_plain_search_over_all_counts():
    counts, parts = texts(3, 12, 2, 5)
    vectors = counts.T @ parts
    bags = whole_bags(vectors, 3, 1e-9)
    parts = in_order(bags.parts, parts)
    for word, vector in enumerate(vectors):
        every = [
            torch.tensor(tried, dtype=torch.double)
            for tried in product(range(9), repeat=3)
            if float((torch.tensor(tried, dtype=torch.double) @ parts - vector).norm()) < 1e-7
        ]
        assert any(torch.equal(one, in_order(bags.amounts, counts)[:, word]) for one in every)


def test_real_amounts_come_back_up_to_a_factor_of_each_sample():
    counts, parts = texts(4, 60, 3, 2)
    draw = torch.Generator().manual_seed(0)
    amounts = counts * (0.2 + torch.rand(counts.shape, generator=draw, dtype=torch.double))
    bags = real_bags(amounts.T @ parts, 4, 1e-9)
    lengths = parts.norm(dim=1, keepdim=True)
    mine = in_order(bags.amounts, amounts * lengths)
    explained = bags.explained
    assert float(explained.double().mean()) > 0.8
    assert torch.allclose(mine[:, explained], (amounts * lengths)[:, explained])


def test_samples_of_one_direction_are_not_told_apart_by_real_amounts():
    counts, parts = texts(4, 60, 1, 2)
    assert not len(real_bags((1.5 * counts.T) @ parts, 4, 1e-9).parts)
