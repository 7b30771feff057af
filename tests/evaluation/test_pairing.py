"""The assignment is the best of all permutations, also with broken samples and with too few or too many."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import pair, psnr, psnr_matrix


def total(pairing, reconstructed, original):
    matrix = psnr_matrix(reconstructed, original)
    return sum(matrix[i, j].item() for i, j in enumerate(pairing.rows.tolist()) if j >= 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_best_of_all_assignments(originals, reconstructions, seed):
    generator = torch.Generator().manual_seed(seed)
    original = torch.rand(originals, 6, generator=generator)
    reconstructed = torch.rand(reconstructions, 6, generator=generator)
    pairing = pair(reconstructed, original)
    used = pairing.rows[pairing.matched].tolist()
    assert len(used) == len(set(used)) == min(originals, reconstructions)
    matrix = psnr_matrix(reconstructed, original)
    if originals > reconstructions:
        matrix = matrix.T
    small, large = matrix.shape
    brute = max(sum(matrix[i, j].item() for i, j in enumerate(p)) for p in permutations(range(large), small))
    assert total(pairing, reconstructed, original) == pytest.approx(brute)


def test_finds_a_permutation():
    original = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    pairing = pair(original[order], original)
    assert torch.equal(order[pairing.rows], torch.arange(12))
    assert torch.equal(pairing.apply(original[order]), original)


def test_matrix_is_psnr_of_each_pair():
    first, second = torch.rand(3, 1, 5, 5), torch.rand(2, 1, 5, 5)
    matrix = psnr_matrix(first, second, data_range=2.0)
    for i in range(2):
        expected = psnr(first, second[i].expand_as(first), data_range=2.0)
        assert torch.allclose(matrix[i].float(), expected, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_broken_reconstructions_belong_to_nobody(bad):
    original = torch.tensor([[0.0], [0.5], [1.0]])
    reconstructed = torch.tensor([[1.0], [bad], [0.0]])
    assert pair(reconstructed, original).rows.tolist() == [2, -1, 0]
    assert pair(torch.full((3, 1), bad), original).rows.tolist() == [-1, -1, -1]


def test_a_broken_surplus_costs_nothing():
    assert pair(torch.tensor([[float("nan")], [0.2]]), torch.tensor([[1.0]])).rows.tolist() == [1]


def test_no_reconstruction_at_all():
    pairing = pair(torch.zeros(0, 4), torch.rand(2, 4))
    assert pairing.rows.tolist() == [-1, -1]
    assert pairing.apply(torch.zeros(0, 4)).shape == (2, 4)


def test_errors():
    with pytest.raises(InvalidInput, match=r"\(4,\), but the originals have shape \(5,\)"):
        pair(torch.rand(2, 4), torch.rand(2, 5))
    with pytest.raises(InvalidInput, match="originals hold NaN"):
        pair(torch.rand(1, 1), torch.tensor([[float("nan")]]))
