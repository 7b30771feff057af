import pytest
import torch

from leakgauge.attacks.learned import features
from leakgauge.attacks.learned.features import Products, Sketch, kernels, strangeness, within_classes


def messages(count, seed=0, numbers=3000):
    draw = torch.Generator().manual_seed(seed)
    return [
        {"weight": torch.randn(numbers, generator=draw), "bias": 3 * torch.randn(20, generator=draw)}
        for _ in range(count)
    ]


def test_small_messages_are_kept_as_they_are():
    (message,) = messages(1)
    sketch = Sketch.of(message, 10, seed=0)
    assert torch.equal(sketch(message), torch.cat([message["weight"], message["bias"]]))


def test_reduced_messages_keep_their_inner_products(monkeypatch):
    monkeypatch.setattr(features, "MOST_VALUES", 10 * 1500)
    one, other = messages(2)
    other = {name: value + one[name] for name, value in other.items()}
    sketch = Sketch.of(one, 10, seed=0)
    assert sketch.sizes[0] < 1600
    assert sketch.sizes[1] == 20
    short, true = sketch(one) @ sketch(other), sum((one[name] * other[name]).sum() for name in one)
    assert short == pytest.approx(float(true), rel=0.1)


def test_products_of_groups_add_up(monkeypatch):
    monkeypatch.setattr(features, "MOST_GROUPS", 2)
    rows, one = torch.randn(6, 10), torch.randn(10)
    products = Products.of(rows, one, [3, 2, 4, 1])
    assert products.groups.shape == (2, 6, 6)
    assert torch.allclose(products.groups.sum(0).float(), rows @ rows.T, atol=1e-5)
    assert torch.allclose(products.groups[0].float(), rows[:, :5] @ rows[:, :5].T, atol=1e-5)
    assert torch.allclose(products.observed.sum(0).float(), rows @ one, atol=1e-5)
    assert float(products.lengths.sum()) == pytest.approx(float(one.square().sum()), rel=1e-5)


def test_similarities_of_a_rehearsed_message_are_its_row():
    rows = torch.randn(8, 12)
    for kernel in kernels(Products.of(rows, rows[3], [5, 7])):
        assert torch.allclose(kernel.observed, kernel.among[3], atol=1e-5), kernel.name
        labels = torch.tensor([[0], [1], [0], [1], [0], [1], [0], [1]])
        by_label = within_classes(kernel, labels, labels[3])
        assert torch.allclose(by_label.observed, by_label.among[3], atol=1e-5), kernel.name


def test_similarities_of_directions_ignore_lengths():
    rows = torch.randn(8, 12)
    one, other = (kernels(Products.of(rows, factor * rows[0], [5, 7]), directions_only=True) for factor in (1.0, 20.0))
    assert [kernel.name for kernel in one] == ["direction", "nearness"]
    for first, second in zip(one, other, strict=True):
        assert torch.allclose(first.observed, second.observed, atol=1e-6)


def test_a_message_of_another_kind_is_strange():
    base = torch.randn(200)
    rows = base + 0.1 * torch.randn(30, 200)
    assert strangeness(Products.of(rows, base + 0.1 * torch.randn(200), [200])) < 2
    assert strangeness(Products.of(rows, torch.randn(200), [200])) > 10
