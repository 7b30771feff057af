"""As many numbers are set to zero as the probability says; the others stay as they are."""

import pytest
import torch

from leakscope.defences import RandomPruning
from leakscope.errors import InvalidInput


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 0.99])
def test_a_share_is_set_to_zero_and_the_rest_is_left(probability):
    given = {"a": torch.rand(3, 50_000) + 1}
    found = RandomPruning(probability).on_sample_gradients(given, torch.Generator().manual_seed(0))["a"]
    holes = found == 0
    assert torch.equal(found[~holes], given["a"][~holes])
    for row in holes:
        assert row.double().mean().item() == pytest.approx(probability, abs=0.01)


@pytest.mark.parametrize("probability", [1, 1.0, 20])
def test_pruning_everything_is_refused(probability):
    with pytest.raises(InvalidInput, match="probability of random pruning must be a number of at least 0 and below 1"):
        RandomPruning(probability)
