"""Truth: its checks and its label counts."""

import pytest
import torch

from leakgauge import DataSpec, Truth
from leakgauge.core.errors import InvalidInput

SPEC = DataSpec((2,), 3)
INPUTS, TARGETS = torch.rand(4, 2), torch.tensor([0, 0, 2, 0])


def test_counts_and_length():
    truth = Truth(INPUTS, TARGETS, SPEC)
    assert len(truth) == 4
    assert truth.label_counts.tolist() == [3, 0, 1]


def test_a_regression_has_no_label_counts():
    with pytest.raises(InvalidInput, match="only for classification"):
        _ = Truth(INPUTS, torch.rand(4), DataSpec((2,), None)).label_counts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.rand(4, 3), TARGETS, SPEC), r"samples have shape \(3,\), but the data is described as \(2,\)"),
        ((INPUTS, TARGETS[:3], SPEC), "4 samples but 3 targets"),
        ((INPUTS, TARGETS, SPEC, (), torch.rand(9, 3)), r"reference samples have shape \(3,\)"),
        ((INPUTS, TARGETS, SPEC, (), torch.rand(9, 2), TARGETS), "9 reference samples but 4 targets"),
        ((INPUTS, TARGETS, SPEC, (), None, TARGETS), "reference targets but no reference samples"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(InvalidInput, match=words):
        Truth(*arguments)


def test_reference_samples_may_lack_targets():
    truth = Truth(INPUTS, TARGETS, SPEC, (), torch.rand(9, 2))
    assert truth.reference_targets is None
