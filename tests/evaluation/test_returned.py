"""The count of samples that came back nearly exactly."""

import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.truth import Truth
from leakgauge.evaluation.returned import returned


def truth(samples, bounded=True, std=(1.0,)):
    return Truth(
        samples, torch.zeros(len(samples), dtype=torch.long), DataSpec(samples.shape[1:], 2, (0.0,), std, bounded)
    )


def test_a_sample_counts_once_in_any_order_and_below_forty_decibels_not():
    own = torch.rand(100, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert returned(own.flip(0), truth(own)) == 100
    assert returned(torch.cat([own[:3], own[:3]]), truth(own)) == 3
    assert returned(own + 0.009, truth(own)) == 100
    assert returned(own + 0.011, truth(own)) == 0
    assert returned(own[:0], truth(own)) == 0


def test_values_without_a_range_are_measured_in_their_standard_deviation():
    own = 100 * torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    assert returned(own + 0.5, truth(own, bounded=False, std=(100.0,))) == 5
    assert returned(own + 0.5, truth(own, bounded=False)) == 0
