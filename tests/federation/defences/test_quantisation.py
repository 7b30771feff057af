import pytest
import torch

from leakgauge.federation.defences import Quantisation


def quantised(bits, value, seed=0):
    return Quantisation(bits).on_gradients({"a": value}, torch.Generator().manual_seed(seed))["a"]


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_numbers_lie_on_the_levels_and_the_largest_stays(bits):
    value = torch.randn(2, 500, generator=torch.Generator().manual_seed(1))
    found = quantised(bits, value)
    for row in range(2):
        assert len(found[row].unique()) <= 2**bits - 1
        unit = value[row].abs().max() / (2 ** (bits - 1) - 1)
        assert torch.allclose(found[row] / unit, (found[row] / unit).round(), atol=1e-4)
        assert (found[row] - value[row]).abs().max() <= unit * 1.001


def test_it_is_right_on_average():
    value = torch.tensor([[0.3, -0.7, 1.0]])
    mean = torch.stack([quantised(2, value, seed) for seed in range(2000)]).mean(0)
    assert torch.allclose(mean, value, atol=0.05)


def test_zeros_stay():
    assert quantised(4, torch.zeros(1, 5)).tolist() == [[0] * 5]
