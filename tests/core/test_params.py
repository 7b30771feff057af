"""Arithmetic on named tensors."""

import pytest
import torch

from leakgauge.core.params import (
    buffers_of,
    detach,
    elementwise,
    flatten,
    parameters_of,
    scale,
    subtract,
    to,
    weighted_mean,
)
from tests.federation.networks import Tied, batch_norm

A = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([[3.0]])}
B = {"x": torch.tensor([5.0, 1.0]), "y": torch.tensor([[1.0]])}


def test_arithmetic_goes_by_name():
    swapped = {"y": B["y"], "x": B["x"]}
    assert flatten(subtract(A, swapped)).tolist() == [-4, 1, 2]
    assert flatten(scale(A, -2)).tolist() == [-2, -4, -6]
    assert flatten(elementwise(torch.maximum, A, swapped)).tolist() == [5, 2, 3]
    assert flatten(to(A, "cpu")).tolist() == [1, 2, 3]


def test_weighted_mean_takes_counters_from_the_first():
    trees = [{"w": torch.tensor([1.0]), "n": torch.tensor(3)}, {"w": torch.tensor([4.0]), "n": torch.tensor(8)}]
    mean = weighted_mean(trees, [2, 1])
    assert mean["w"].tolist() == pytest.approx([2.0])
    assert mean["n"].item() == 3
    mean["n"].add_(1)
    assert trees[0]["n"].item() == 3


def test_parameters_and_buffers_are_copies_and_tied_ones_come_once():
    model = Tied()
    weights = parameters_of(model)
    assert "second.weight" not in weights
    weights["first.weight"].zero_()
    assert model.first.weight.abs().sum() > 0
    norm = batch_norm()
    buffers_of(norm)["1.running_mean"].add_(1)
    assert buffers_of(norm)["1.running_mean"].abs().sum() == 0


def test_detached_trees_hold_no_graph():
    tracked = {"x": torch.ones(2, requires_grad=True) * 2}
    assert tracked["x"].requires_grad
    assert not detach(tracked)["x"].requires_grad
