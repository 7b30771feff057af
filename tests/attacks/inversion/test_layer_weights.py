"""Layer weights against the papers' formulas, worked out by hand."""

import math

import pytest
import torch
from torch import nn

from leakgauge.attacks.inversion.layer_weights import ByKind, Sloped
from leakgauge.attacks.inversion.layers import Layer, layers_of_model
from leakgauge.attacks.inversion.objectives import L2, Cosine, LayerWeighted
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.params import flatten, parameters_of


def convolutions(number):
    """So many convolutions, each with its norm, and a linear layer."""
    parts = [nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)) for _ in range(number)]
    return nn.Sequential(*parts, nn.Linear(1, 2))


def update(model, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=draw) for name, value in parameters_of(model).items()}


def weights_of(rule, model, predicted=None, observed=None):
    observed = update(model) if observed is None else observed
    layers = layers_of_model(model, observed)
    found = rule.begin(layers)(update(model, 1) if predicted is None else predicted, observed)
    return [float(found[layer.parameters[0]]) for layer in layers]


@pytest.mark.parametrize(
    ("shape", "middle"),
    [
        ("linear", 1 + 49 / 2),
        ("exponential", 1 + 49 * (math.e**2 - math.e) / (math.e**3 - math.e)),
        ("logarithmic", 1 + 49 * math.log(2) / math.log(3)),
    ],
)
def test_a_slope_goes_through_both_points(shape, middle):
    """Through (1, 1) and (N, beta), for a e^x + b and a ln x + b too (AGIC, section IV-C)."""
    found = weights_of(Sloped(50.0, shape, zeros=False), convolutions(3))
    assert found[0:6:2] == pytest.approx([1, middle, 50])
    assert found[-1] == pytest.approx((51 + middle) / 3)  # equation 8: fully connected layers at the mean


def test_a_beta_below_one_falls_and_of_one_is_flat():
    assert weights_of(Sloped(0.5, zeros=False), convolutions(3))[0:6:2] == pytest.approx([1, 0.75, 0.5])
    assert set(weights_of(Sloped(1.0, zeros=False), convolutions(3))) == {1.0}


def test_an_exponential_slope_over_very_many_layers_stays_finite():
    layers = [Layer(str(number), "convolution", (str(number),)) for number in range(1000)]
    found = Sloped(50.0, "exponential", zeros=False).begin(layers)({}, {})
    assert found["0"] == pytest.approx(1)
    assert found["999"] == pytest.approx(50)


@pytest.mark.parametrize(("norms", "expected"), [("one", [1, 1]), ("layer", [1, 50]), ("none", [0, 0])])
def test_normalisations_count_as_told(norms, expected):
    assert weights_of(Sloped(50.0, zeros=False, norms=norms), convolutions(2))[1:4:2] == expected


def test_zeros_make_a_convolution_count_more():
    """Equation 8: a quarter of zeros makes it 4/3 of what it was; other layers stay."""
    model = nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.Conv2d(2, 1, 1, bias=False), nn.Linear(4, 2))
    observed = update(model)
    observed["0.weight"].view(-1)[:2] = 0
    observed["2.weight"].view(-1)[:4] = 0
    plain, corrected = (weights_of(Sloped(3.0, zeros=zeros), model, observed=observed) for zeros in (False, True))
    assert plain == [1, 3, 2]
    assert corrected == pytest.approx([4 / 3, 3, 2])
    observed["0.weight"].zero_()
    assert math.isfinite(weights_of(Sloped(3.0), model, observed=observed)[0])


def test_without_convolutions_the_slope_runs_over_linear_layers():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2), nn.Linear(2, 2))
    assert weights_of(Sloped(5.0), model) == [1, 1, 3, 5]


def test_each_kind_rises_to_its_own_weight():
    """AWA, equation 24; a kind with one layer has its largest weight at once."""
    found = weights_of(ByKind(convolution=9.0, normalisation=5.0, linear=7.0), convolutions(3))
    assert found == [1, 1, 5, 3, 9, 5, 7]


def test_layers_far_off_in_mean_and_variance_are_enhanced():
    """AWA, equations 25 to 30: only those that are among the largest in both."""
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4)))
    observed = {f"{number}.weight": torch.arange(1.0, 17).reshape(4, 4) for number in range(4)}
    predicted = {name: value.clone() for name, value in observed.items()}
    predicted["0.weight"] *= 3  # mean and variance
    predicted["1.weight"] += 5  # the mean alone
    predicted["2.weight"] = 8.5 + 2 * (observed["2.weight"] - 8.5)  # the variance alone
    rule = ByKind(linear=4.0, enhanced=100.0, share_mean=0.5, share_var=0.5)
    assert weights_of(rule, model, predicted, observed) == [100, 2, 3, 4]
    one = ByKind(linear=4.0, enhanced=100.0, share_mean=0.01, share_var=0.01)
    assert weights_of(one, model, predicted, observed) == [100, 2, 3, 4]  # at least one layer is looked at
    none = ByKind(linear=4.0, enhanced=100.0, share_mean=0.0, share_var=0.5)
    assert weights_of(none, model, predicted, observed) == [1, 2, 3, 4]


@pytest.mark.parametrize("rule", [Sloped(7.0), ByKind(9.0, 5.0, 7.0, 50.0, 0.5, 0.5)], ids=repr)
@pytest.mark.parametrize("base", [Cosine(), L2(), L2(relative=True)], ids=repr)
def test_a_weighted_distance_is_that_of_updates_times_the_roots(rule, base):
    model = convolutions(3)
    predicted, observed = update(model, 1), update(model)
    weights = rule.begin(layers_of_model(model, observed))(predicted, observed)
    roots = [{name: tree[name] * weights[name] ** 0.5 for name in tree} for tree in (predicted, observed)]
    weighted = LayerWeighted(base, rule)
    assert weighted.begin(model)(predicted, observed).item() == pytest.approx(base(*roots).item(), rel=1e-5)
    assert weighted.scale_free == base.scale_free
    assert weighted.begin(model)(observed, observed).item() == pytest.approx(0, abs=1e-6)


def test_equal_weights_are_no_weights():
    model = convolutions(2)
    predicted, observed = update(model, 1), update(model)
    for base in (Cosine(), L2()):
        found = LayerWeighted(base, ByKind()).begin(model)(predicted, observed)
        assert found.item() == pytest.approx(base(predicted, observed).item(), rel=1e-6)


@pytest.mark.parametrize("rule", [Sloped(7.0), ByKind(9.0, 5.0, 7.0, 50.0, 0.5, 0.5)], ids=repr)
def test_vectorised_over_problems(rule):
    model = convolutions(2)
    many = [update(model, seed) for seed in range(3)]
    stacked = {name: torch.stack([one[name] for one in many]) for name in many[0]}
    distance = LayerWeighted(Cosine(), rule).begin(model)
    found = torch.func.vmap(distance, in_dims=(0, None))(stacked, update(model, 9))
    assert torch.allclose(found, torch.stack([distance(one, update(model, 9)) for one in many]), atol=1e-6)


def test_frozen_parameters_are_left_out():
    model = convolutions(2)
    model[0][0].weight.requires_grad_(False)
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    distance = LayerWeighted(L2(), Sloped(3.0)).begin(model)
    assert distance(trained, trained).item() == 0
    assert flatten(trained).numel() > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sloped(0.0), lambda: Sloped(float("nan")), lambda: ByKind(convolution=-1.0),
        lambda: ByKind(enhanced=0.0), lambda: ByKind(share_mean=1.5), lambda: ByKind(share_var=-0.1),
    ],
)  # fmt: skip
def test_weights_that_cannot_be_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_unknown_shapes_are_refused():
    with pytest.raises(UnknownName, match="linear"):
        Sloped(shape="quadratic")
    with pytest.raises(UnknownName, match="layer"):
        Sloped(norms="two")
