"""The Zest similarity is 1 for equal models, and falls with their distance."""

import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.evaluation.metrics.model_distance import components, signature, zest, zest_published

TABLE = DataSpec((5,), 2, bounded=False, columns=("age", "pay", "job=a", "job=b", "job=c"))
PICTURE = DataSpec((1, 12, 12), 3)


def linear(weights, bias=0.0):
    return lambda samples: samples.flatten(1).double() @ weights.double() + bias


def test_equal_models_are_alike_whatever_their_bias():
    rows = torch.randn(6, 5)
    weights = torch.randn(5, 2)
    assert zest(linear(weights), linear(weights, 3.0), rows, TABLE) == pytest.approx(1)
    assert zest(linear(weights), linear(-weights), rows, TABLE) == pytest.approx(-1)


@pytest.mark.parametrize("spec", [TABLE, PICTURE], ids=["table", "picture"])
def test_similarity_falls_with_the_distance(spec):
    draw = torch.Generator().manual_seed(0)
    size = torch.Size(spec.shape).numel()
    samples = torch.rand(8, *spec.shape, generator=draw)
    weights, other = (torch.randn(size, 2, generator=draw) for _ in range(2))
    similarities = [
        zest(linear(weights), linear(weights + step * other), samples, spec) for step in (0.0, 0.3, 1.0, 3.0)
    ]
    assert similarities == sorted(similarities, reverse=True)
    assert similarities[0] == pytest.approx(1)
    assert similarities[-1] < 0.9


def test_the_explanation_of_a_linear_model_is_what_its_features_add():
    rows = torch.tensor([[1.0, 2.0, 1.0, 0.0, 0.0], [3.0, 0.0, 0.0, 1.0, 0.0]])
    weights = torch.tensor([[1.0], [10.0], [5.0], [-5.0], [2.0]])
    explained = signature(linear(weights), rows, TABLE, masks=4096).reshape(2, 3)
    added = (rows - rows.mean(0)) * weights.T
    expected = torch.stack((added[:, 0], added[:, 1], added[:, 2:].sum(1)), 1).double()
    torch.testing.assert_close(explained, expected, rtol=0.02, atol=0.01)


def test_components_are_features_or_patches():
    assert components(TABLE).tolist() == [0, 1, 2, 2, 2]
    patches = components(PICTURE)
    assert patches.shape == (1, 12, 12)
    assert len(patches.unique()) == 64
    assert components(DataSpec((1, 2, 3), 2)).unique().numel() == 6


def test_models_are_compared_under_the_same_masks_every_time():
    rows = torch.randn(3, 5)
    model = linear(torch.randn(5, 2))
    assert torch.equal(signature(model, rows, TABLE, seed=1), signature(model, rows, TABLE, seed=1))


def test_bad_references_are_refused():
    with pytest.raises(InvalidInput, match="reference samples"):
        zest(linear(torch.ones(5, 1)), linear(torch.ones(5, 1)), torch.zeros(0, 5), TABLE)
    with pytest.raises(InvalidInput, match="masks"):
        zest(linear(torch.ones(5, 1)), linear(torch.ones(5, 1)), torch.zeros(2, 5), TABLE, masks=1)


def test_the_published_form_is_high_for_models_that_have_nothing_in_common():
    """The reason why figures of this form are never compared with those of our own."""
    spec, draw = DataSpec((60,), 2, bounded=False), torch.Generator().manual_seed(0)
    rows = torch.randn(8, 60, generator=draw)
    models = [linear(0.05 * torch.randn(60, 2, generator=draw)) for _ in range(12)]
    pairs = list(zip(models[::2], models[1::2], strict=True))
    published = [zest_published(first, second, rows, spec) for first, second in pairs]
    assert sum(published) / len(published) > 0.6
    assert abs(sum(zest(first, second, rows, spec) for first, second in pairs) / len(pairs)) < 0.2
