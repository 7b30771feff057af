"""Epochs put back into one order."""

import pytest
import torch

from leakgauge.attacks.inversion.matching import average_epochs, match_epochs, match_greedily
from leakgauge.core.errors import InvalidInput


def pictures(samples=8, seed=0):
    return torch.rand(samples, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def shuffled(samples, epochs=4):
    orders = [torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)) for seed in range(epochs)]
    return torch.stack([samples[order] for order in orders])


def test_permutations_are_undone():
    copies = shuffled(pictures())
    assert not torch.equal(copies[1], copies[0])
    assert torch.equal(match_epochs(copies), copies[:1].expand_as(copies))


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 4, 4), (30,)], ids=str)
def test_permutations_are_undone_under_noise(shape):
    draw = torch.Generator().manual_seed(1)
    clean = shuffled(torch.rand(8, *shape, generator=draw))
    error = 0.1 * torch.randn(clean.shape, generator=draw)
    matched = match_epochs(clean + error)
    assert torch.equal(matched[0], (clean + error)[0])
    assert (matched - clean[0]).abs().max() < 0.6
    assert (matched - clean[0]).square().mean() == pytest.approx(error.square().mean().item(), rel=1e-4)


def test_the_average_of_noisy_epochs_is_nearer_than_each():
    clean = shuffled(pictures(), epochs=9)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    error = (average_epochs(noisy) - clean[0]).square().mean()
    assert error.item() == pytest.approx(0.01 / 9, rel=0.3)


def test_the_average_of_permuted_copies_is_the_first():
    copies = shuffled(pictures())
    assert torch.allclose(average_epochs(copies), copies[0])
    assert torch.equal(average_epochs(copies[:1]), copies[0])


def test_the_assignment_is_one_to_one():
    """Both samples of the second epoch are nearest to the first one's first; only one of them may have it."""
    copies = torch.tensor([[[0.0], [1.0]], [[0.2], [0.1]]])
    assert match_epochs(copies)[1].flatten().tolist() == pytest.approx([0.1, 0.2])
    assert sorted(match_epochs(shuffled(pictures()))[3].flatten(1).sum(1).tolist()) == pytest.approx(
        sorted(pictures().flatten(1).sum(1).tolist())
    )


def test_the_sum_of_the_psnrs_decides_not_that_of_the_errors():
    """A perfect match and a bad one have more PSNR than two fair ones, though a larger error."""
    copies = torch.tensor([[[0.0], [0.1]], [[0.1], [0.2]]])
    assert match_epochs(copies)[1].flatten().tolist() == pytest.approx([0.2, 0.1])


def test_only_samples_of_the_same_label_are_matched():
    """By their looks alone the second epoch's samples would change places."""
    copies = torch.tensor([[[0.0], [1.0], [0.5]], [[1.0], [0.0], [0.5]]])
    assert match_epochs(copies)[1].flatten().tolist() == [0.0, 1.0, 0.5]
    labels = torch.tensor([[7, 8, 8], [7, 8, 8]])
    assert match_epochs(copies, labels)[1].flatten().tolist() == [1.0, 0.0, 0.5]
    turned = copies.clone()
    turned[1, 1:] = copies[1, 1:].flip(0)
    assert torch.equal(match_epochs(turned, labels), match_epochs(copies, labels))


def test_labels_at_other_places_in_every_epoch_lead_to_the_right_samples():
    own, labels = pictures(), torch.tensor([0, 1, 1, 2, 2, 2, 3, 3])
    orders = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)])
    copies = own[orders]
    assert torch.equal(match_epochs(copies, labels[orders]), copies[:1].expand_as(copies))
    noise = torch.rand(copies.shape, generator=torch.Generator().manual_seed(9))  # no epoch looks like another
    for epoch, before, order in zip(match_epochs(noise, labels[orders]), noise, orders, strict=True):
        rows = [(before == sample).flatten(1).all(1).nonzero().item() for sample in epoch]
        assert sorted(rows) == list(range(8))
        assert torch.equal(labels[order[rows]], labels[orders[0]])
    assert torch.allclose(average_epochs(copies, labels[orders]), copies[0])


@pytest.mark.parametrize("labels", [torch.zeros(2, 7), torch.zeros(8), torch.arange(16).reshape(2, 8)], ids=str)
def test_labels_that_do_not_fit_the_epochs_are_refused(labels):
    with pytest.raises(InvalidInput, match=r"labels must be \(epochs, samples\), one for each of the copies"):
        match_epochs(shuffled(pictures(), epochs=2), labels)


def test_what_has_no_epochs_is_refused():
    with pytest.raises(InvalidInput, match=r"expected \(epochs, samples, ...\), not a tensor of shape \(4, 5\)"):
        match_epochs(torch.zeros(4, 5))


def test_greedy_pairs_undo_a_permutation():
    samples = pictures()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    pairs = match_greedily(samples, samples[order])
    assert [int(order[other]) for _, other in pairs] == list(range(8))


def test_the_most_similar_are_paired_first():
    """One to one: the second of the first epoch must take what the better match leaves."""
    first, second = torch.tensor([[0.0], [0.4]]), torch.tensor([[0.1], [5.0]])
    assert match_greedily(first, second) == [(0, 0), (1, 1)]
    assert match_greedily(first, torch.tensor([[0.35], [5.0]])) == [(0, 1), (1, 0)]


def test_a_filter_comes_first_and_what_is_left_is_paired_without_it():
    first, second = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [1.0], [2.0]])
    allowed = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    assert match_greedily(first, second, allowed=allowed) == [(0, 1), (1, 0), (2, 2)]


def test_pooling_looks_through_noise():
    """Noise that cancels within 2 x 2 pixels is no difference."""
    samples = pictures(2)
    noise = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(3, 3)
    noisy = samples.flip(0) + torch.stack([noise, 0 * noise])[:, None]
    assert match_greedily(samples, noisy, pool=2) == [(0, 1), (1, 0)]
    plain = (samples[:, None] - noisy[None]).square().flatten(2).sum(2)
    assert plain[1, 0] > plain[1, 1] or plain[0, 1] < plain[0, 0]


def test_epochs_of_unequal_size_leave_some_alone():
    samples = pictures(5)
    assert match_greedily(samples, samples[[3, 1]]) == [(1, 1), (3, 0)]


def test_samples_that_cannot_be_compared_are_refused():
    with pytest.raises(InvalidInput, match="cannot be paired"):
        match_greedily(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(InvalidInput, match="pool"):
        match_greedily(torch.zeros(2, 3), torch.zeros(2, 3), pool=0)
