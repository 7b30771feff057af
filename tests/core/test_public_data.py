import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.core.public_data import PublicData, sample_digests


def nothing(samples, targets, seed):
    return {}


def test_equal_samples_have_equal_digests_and_others_do_not():
    samples = torch.rand(3, 2, 2)
    samples[2] = samples[0]
    first, second, third = sample_digests(samples)
    assert first == third != second
    assert PublicData(samples, torch.zeros(3), nothing).digests == [first, second, third]


def test_samples_without_targets_and_no_samples_are_refused():
    with pytest.raises(InvalidInput, match="3 samples but 2 targets"):
        PublicData(torch.rand(3, 2), torch.zeros(2), nothing)
    with pytest.raises(InvalidInput, match="has no samples"):
        PublicData(torch.rand(0, 2), torch.zeros(0), nothing)


def test_moving_keeps_the_rest():
    public = PublicData(torch.rand(3, 2), torch.zeros(3), nothing, "three", "no recipe")
    moved = public.to("cpu")
    assert (len(moved), moved.description, moved.obstacle) == (3, "three", "no recipe")
