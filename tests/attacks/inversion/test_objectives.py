"""The distances against hand formulas, and at the points where a formula would break."""

import math

import pytest
import torch
from torch import nn

from leakgauge import models
from leakgauge.attacks.inversion.layer_weights import Sloped
from leakgauge.attacks.inversion.objectives import L2, Cosine, LayerWeighted, Logarithmic, Objective, layers_of
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten, parameters_of, scale
from leakgauge.core.seeding import generator

OBJECTIVES: list[Objective] = [Cosine(), L2(), L2(decay=0.5)]


def update(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(3, 4, generator=generator), "b": torch.randn(5, generator=generator)}


def test_cosine_is_the_formula_over_all_layers_at_once():
    u, v = update(0), update(1)
    expected = 1 - torch.nn.functional.cosine_similarity(flatten(u), flatten(v), dim=0)
    assert Cosine()(u, v).item() == pytest.approx(expected.item(), abs=1e-6)


def test_l2_is_the_squared_distance():
    u, v = update(0), update(1)
    assert L2()(u, v).item() == pytest.approx((flatten(u) - flatten(v)).square().sum().item())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_an_update_is_nowhere_from_itself(objective):
    assert objective(update(0), update(0)).item() == pytest.approx(0, abs=1e-6)


def test_cosine_runs_from_zero_to_two():
    assert Cosine()(update(0), scale(update(0), -3)).item() == pytest.approx(2, abs=1e-6)


@pytest.mark.parametrize("factor", [1e-9, 0.01, 7.0, 1e9])
def test_what_is_scale_free_ignores_the_scale_and_what_is_not_does_not(factor):
    for objective in OBJECTIVES:
        plain, scaled = (objective(scale(update(0), by), update(1)).item() for by in (1, factor))
        assert (scaled == pytest.approx(plain, rel=1e-5)) == objective.scale_free


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
@pytest.mark.parametrize("observed", [update(1), scale(update(1), 0)], ids=["against an update", "against zero"])
def test_a_zero_update_has_a_finite_distance_and_gradient(objective, observed):
    predicted = {name: torch.zeros_like(value, requires_grad=True) for name, value in observed.items()}
    distance = objective(predicted, observed)
    distance.backward()
    assert torch.isfinite(distance)
    for value in predicted.values():
        assert value.grad is not None
        assert bool(torch.isfinite(value.grad).all())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_vectorised_over_problems(objective):
    stacked = {name: torch.stack([update(seed)[name] for seed in range(3)]) for name in update(0)}
    found = torch.func.vmap(objective, in_dims=(0, None))(stacked, update(9))
    expected = torch.stack([objective(update(seed), update(9)) for seed in range(3)])
    assert torch.allclose(found, expected)


def test_layers_are_counted_from_the_input_and_kernel_and_bias_share_theirs():
    model = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[2, 3], dense=4, seed=0)
    layers = layers_of(parameters_of(model))
    assert layers == {
        "features.0.weight": 0,
        "features.0.bias": 0,
        "features.3.weight": 1,
        "features.3.bias": 1,
        "dense.weight": 2,
        "dense.bias": 2,
        "head.weight": 3,
        "head.bias": 3,
    }


def test_decay_weights_each_layer_less_than_the_one_before():
    one = {name: torch.full((2,), 1.0) for name in ("a.weight", "a.bias", "b.weight", "c.weight", "c.bias")}
    zero = scale(one, 0)
    assert L2(decay=0.5)(one, zero).item() == pytest.approx(2 * (1 + 1 + 0.5 + 0.25 + 0.25))
    assert L2()(one, zero).item() == pytest.approx(10)


@pytest.mark.parametrize("decay", [0, -1.0, float("nan")])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(InvalidInput, match="decay must be a number above 0"):
        L2(decay=decay)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_a_relative_distance_does_not_know_the_size_of_updates(factor):
    objective = L2(decay=0.5, relative=True)
    one, other = update(1), update(2)
    expected = L2(decay=0.5)(one, other) / L2(decay=0.5)(scale(other, 0), other)
    assert objective(scale(one, factor), scale(other, factor)).item() == pytest.approx(expected.item())
    assert objective(scale(one, 0), other).item() == pytest.approx(1)


def test_what_is_kept_of_an_observation_is_not_taken_for_another():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    first, second, predicted = (
        {name: torch.randn(value.shape, generator=generator(seed)) for name, value in model.named_parameters()}
        for seed in (1, 2, 3)
    )
    second["0.weight"][0] = 0  # another share of zeros, and so other weights
    for objective in (Cosine(), LayerWeighted(Cosine(), Sloped(beta=5.0))):
        kept = objective.begin(model)
        for observed in (first, first, second, first):
            assert torch.equal(kept(predicted, observed), objective.begin(model)(predicted, observed))
        assert not torch.equal(kept(predicted, first), kept(predicted, second))


def test_the_logarithm_weights_a_distance_by_its_own_inverse():
    """Far from the floor, halving the distance lowers the loss by log 2, whatever the distance."""
    objective = Logarithmic(L2(relative=True), floor=1e-6).begin(nn.Identity())
    zero = scale(update(1), 0)
    losses = [objective(scale(update(1), share), update(1)).item() for share in (0.0, 1 - 0.5**0.5, 0.5)]
    assert losses[0] - losses[1] == pytest.approx(math.log(2), rel=1e-3)
    assert losses[1] - losses[2] == pytest.approx(math.log(2), rel=1e-3)
    assert objective(update(1), update(1)).item() == 0
    assert not Logarithmic(L2()).scale_free
    assert Logarithmic(Cosine()).scale_free
    assert math.isfinite(objective(zero, zero).item())


def test_a_floor_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="floor of a logarithm"):
        Logarithmic(L2(), floor=0.0)
