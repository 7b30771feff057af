"""The errors of labels and targets, and the recovered share."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import label_accuracy, label_errors, recovered, target_error

LABELS = st.lists(st.integers(0, 4), max_size=8)


def tensor(values):
    return torch.tensor(values, dtype=torch.long)


@given(LABELS, LABELS)
def test_label_errors_are_those_of_multisets(estimated, true):
    common = sum((Counter(estimated) & Counter(true)).values())
    expected = max(len(estimated), len(true)) - common
    assert label_errors(tensor(estimated), tensor(true)) == expected
    counts = [torch.bincount(tensor(values), minlength=5) for values in (estimated, true)]
    assert label_errors(*counts, counts=True) == expected


@pytest.mark.parametrize("bad", [torch.tensor([0.0]), torch.tensor([[1]]), torch.tensor([-1])])
def test_labels_must_be_whole_numbers(bad):
    with pytest.raises(InvalidInput, match="whole numbers"):
        label_errors(bad, torch.tensor([1]))


def test_counts_must_be_of_the_same_classes():
    with pytest.raises(InvalidInput, match="2 estimated counts for 3 classes"):
        label_errors(torch.tensor([1, 1]), torch.tensor([1, 1, 0]), counts=True)


def test_recovered_is_strict_and_counts_nan_as_lost():
    assert recovered(torch.tensor([19.0, 19.1, float("nan"), 100.0]), 19.0) == 0.5
    with pytest.raises(InvalidInput):
        recovered(torch.tensor([]), 19.0)


def test_label_accuracy_and_target_error():
    assert label_accuracy(tensor([1, -1]), tensor([1, 0])).tolist() == [1, 0]
    assert target_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 5.0]])).tolist() == [2.0]
    assert target_error(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])).tolist() == [0.0, 2.0]
    with pytest.raises(InvalidInput):
        label_accuracy(tensor([1]), tensor([1, 0]))
    with pytest.raises(InvalidInput):
        target_error(torch.zeros(2, 2), torch.zeros(2))


def test_targets_with_values_are_compared_entry_by_entry():
    true = torch.tensor([[[0, 2], [1, 1]], [[0, 0], [0, 0]]])
    estimated = torch.tensor([[[0, 1], [1, 0]], [[0, 0], [0, 0]]])
    by_hand = [
        sum(a != b for a, b in zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)) / 4
        for one, other in zip(estimated, true, strict=True)
    ]
    assert target_error(estimated, true, values=3).tolist() == by_hand == [0.5, 0.0]
