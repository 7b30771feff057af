"""Pruning sets the right share of numbers to zero, and leaves the others unchanged."""

import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.federation.defences import RandomPruning, TopK


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 0.99])
def test_a_share_is_set_to_zero_and_the_rest_is_left(probability):
    given = {"a": torch.rand(3, 50_000) + 1}
    found = RandomPruning(probability).on_gradients(given, torch.Generator().manual_seed(0))["a"]
    holes = found == 0
    assert torch.equal(found[~holes], given["a"][~holes])
    for row in holes:
        assert row.double().mean().item() == pytest.approx(probability, abs=0.01)


@pytest.mark.parametrize("probability", [1, 1.0, 20])
def test_pruning_everything_is_refused(probability):
    with pytest.raises(InvalidInput, match="probability of random pruning must be a number of at least 0 and below 1"):
        RandomPruning(probability)


@pytest.mark.parametrize(("keep", "left"), [(0.1, 1), (0.5, 5), (1.0, 10), (0.001, 1)])
def test_the_largest_numbers_of_all_layers_are_kept(keep, left):
    values = torch.tensor([[1.0, -9.0, 3.0, -7.0, 5.0, 2.0], [6.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    others = torch.tensor([[8.0, -4.0, 6.0, 10.0], [7.0, 8.0, 9.0, 10.0]])
    found = TopK(keep).on_gradients({"a": values, "b": others}, torch.Generator())
    for row in range(2):
        kept = torch.cat([found["a"][row], found["b"][row]])
        everything = torch.cat([values[row], others[row]])
        order = everything.abs().argsort(descending=True)[:left]
        assert set(kept.nonzero().flatten().tolist()) == set(order.tolist())
        assert torch.equal(kept[order], everything[order])
