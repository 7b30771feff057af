import pytest
import torch

from leakgauge.federation.defences import Clipping


def test_long_gradients_are_scaled_and_short_ones_stay():
    given = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([[4.0], [0.4]])}
    found = Clipping(1.0).on_gradients(given, torch.Generator())
    assert found["a"][0].tolist() == pytest.approx([0.6, 0.0])
    assert found["b"][0].tolist() == pytest.approx([0.8])
    assert torch.equal(found["a"][1], given["a"][1])
    assert torch.equal(found["b"][1], given["b"][1])


def test_a_gradient_of_zeros_stays():
    assert Clipping(1.0).on_gradients({"a": torch.zeros(1, 3)}, torch.Generator())["a"].tolist() == [[0, 0, 0]]
