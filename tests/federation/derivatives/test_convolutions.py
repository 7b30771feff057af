from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, jvp, vmap

from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.derivatives import CheapSecondDerivatives, convolutions, has_costly_layers
from leakgauge.federation.training import Trainer

PLAIN = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
GROUPS = convolutions.GROUPS


@pytest.fixture
def products(monkeypatch) -> list[str]:
    """The products that were computed by the module under test."""
    seen: list[str] = []
    original = convolutions._product

    def counted(first: Tensor, second: Tensor, kind: Any, geometry: Any) -> Tensor:
        seen.append(kind)
        return original(first, second, kind, geometry)

    monkeypatch.setattr(convolutions, "_product", counted)
    return seen


def _every_order(call: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Return the output of a function, its slopes, and the slopes of a function of the slopes."""
    leaves = [one.detach().clone().requires_grad_() for one in tensors]
    output = call(*leaves)
    first = torch.autograd.grad(output.sin().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(torch.stack([one.float().sin().square().sum() for one in first]).sum(), leaves)
    return [output, *first, *second]


def _compare(call: Callable[..., Tensor], tensors: list[Tensor], tolerance: float) -> None:
    expected = _every_order(call, tensors)

    def ours(*leaves: Tensor) -> Tensor:
        with CheapSecondDerivatives():
            return call(*leaves)

    for one, other in zip(_every_order(ours, tensors), expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def _settings() -> Iterator[Any]:
    for dimensions, stride, padding, dilation in product((1, 2, 3), (1, 2), (0, 1, "same", "valid"), (1, 2)):
        if not (padding == "same" and stride == 2):
            yield pytest.param(dimensions, stride, padding, dilation, id=f"{dimensions}d-{stride}-{padding}-{dilation}")


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # PyTorch's own, for an even kernel
@pytest.mark.parametrize(("dimensions", "stride", "padding", "dilation"), list(_settings()))
def test_convolution_agrees_with_pytorch_in_every_order(dimensions, stride, padding, dilation, products):
    kernel = (4, 3, 2)[:dimensions]  # an even kernel has unequal sides of "same" padding
    inputs = torch.randn(2, GROUPS, *(9, 8, 7)[:dimensions], dtype=torch.double)
    weight, bias = torch.randn(2 * GROUPS, 1, *kernel, dtype=torch.double), torch.randn(2 * GROUPS, dtype=torch.double)

    def call(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return PLAIN[dimensions - 1](inputs, weight, bias, stride, padding, dilation, GROUPS)

    _compare(call, [inputs, weight, bias], 1e-10)
    assert set(products) == {"output", "input", "weight"}


@pytest.mark.parametrize(("dimensions", "stride"), list(product((1, 2, 3), (1, 2))))
def test_transposed_convolution_agrees_with_pytorch_in_every_order(dimensions, stride, products):
    inputs = torch.randn(2, 2 * GROUPS, *(4, 5, 3)[:dimensions], dtype=torch.double)
    weight = torch.randn(2 * GROUPS, 3, *(3, 2, 2)[:dimensions], dtype=torch.double)
    bias = torch.randn(3 * GROUPS, dtype=torch.double)

    def call(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return TRANSPOSED[dimensions - 1](inputs, weight, bias, stride, 1, stride - 1, groups=GROUPS, dilation=1)

    _compare(call, [inputs, weight, bias], 1e-10)
    assert "input" in products


def test_derivatives_are_those_of_small_differences():
    inputs = torch.randn(1, GROUPS, 3, 3, dtype=torch.double, requires_grad=True)
    weight = torch.randn(GROUPS, 1, 2, 2, dtype=torch.double, requires_grad=True)

    def call(inputs: Tensor, weight: Tensor) -> Tensor:
        with CheapSecondDerivatives():
            return F.conv2d(inputs, weight, stride=2, padding=1, groups=GROUPS)

    assert gradcheck(call, (inputs, weight), fast_mode=True)
    assert gradgradcheck(call, (inputs, weight), fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"padding_mode": "circular"}, {"padding_mode": "reflect", "bias": False}])
@pytest.mark.parametrize("batched", [True, False])
def test_modules_are_replaced_without_a_change_of_the_user(options, batched, products):
    layer = nn.Conv2d(GROUPS, GROUPS, 3, padding=1, groups=GROUPS, **options)
    inputs = torch.randn(*([2] if batched else []), GROUPS, 6, 6)
    _compare(lambda inputs, *_: layer(inputs), [inputs], 1e-5)
    assert products


def test_autocast_computes_in_the_same_precision(products):
    inputs, weight = torch.randn(2, GROUPS, 6, 6), torch.randn(GROUPS, 1, 3, 3)
    leaves = [inputs.requires_grad_(), weight.requires_grad_()]

    def slopes() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = F.conv2d(inputs, weight, groups=GROUPS)
            assert output.dtype == torch.bfloat16
            first = torch.autograd.grad(output.float().square().sum(), leaves, create_graph=True)
            return torch.autograd.grad(sum(one.square().sum() for one in first), leaves)

    expected = slopes()
    with CheapSecondDerivatives():
        found = slopes()
    assert products
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() < 0.02 * other.norm()


def test_few_groups_and_wrong_arguments_are_left_to_pytorch(products):
    with CheapSecondDerivatives():
        F.conv2d(torch.randn(1, 4, 5, 5), torch.randn(4, 2, 3, 3), groups=2)
        with pytest.raises(RuntimeError):
            F.conv2d(torch.randn(1, GROUPS, 5, 5), torch.randn(GROUPS, 1, 3, 3).double(), groups=GROUPS)
        with pytest.raises(RuntimeError):
            F.conv2d(
                torch.randn(1, GROUPS, 5, 5), torch.randn(GROUPS, 1, 3, 3), stride=2, padding="same", groups=GROUPS
            )
        with pytest.raises(RuntimeError):
            F.conv2d(torch.randn(1, GROUPS + 1, 5, 5), torch.randn(GROUPS, 1, 3, 3), groups=GROUPS)
    assert not products


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own, in jvp
def test_function_transforms_agree_with_pytorch(products):
    inputs, weights = torch.randn(3, 2, GROUPS, 5, 5).double(), torch.randn(3, GROUPS, 1, 3, 3).double()

    def slope(inputs: Tensor, weight: Tensor) -> Any:
        return grad(lambda weight: F.conv2d(inputs, weight, padding=1, groups=GROUPS).sin().sum())(weight)

    def slope_of_slope(inputs: Tensor, weight: Tensor) -> Any:
        return grad(lambda inputs: slope(inputs, weight).square().sum())(inputs)

    def along(inputs: Tensor, weight: Tensor) -> Any:
        return jvp(lambda inputs: slope(inputs, weight), (inputs,), (inputs.cos(),))[1]

    for function in (slope, slope_of_slope, along):
        for places in ((0, 0), (0, None)):
            given = (inputs, weights if places[1] == 0 else weights[0])
            expected = vmap(function, in_dims=places)(*given)
            products.clear()
            with CheapSecondDerivatives():
                found = vmap(function, in_dims=places)(*given)
            assert products
            torch.testing.assert_close(found, expected)


def test_only_slopes_that_are_used_are_computed(products):
    inputs, weight = torch.randn(1, GROUPS, 5, 5), torch.randn(GROUPS, 1, 3, 3).requires_grad_()
    inputs.requires_grad_()
    with CheapSecondDerivatives():
        output = F.conv2d(inputs.sin(), weight, groups=GROUPS)
    (slope,) = torch.autograd.grad(output.square().sum(), weight, create_graph=True)
    assert products == ["output", "weight"]
    products.clear()
    torch.autograd.grad(slope.square().sum(), inputs)
    # The slope of the weights depends on the samples by both of its factors, and nothing else is computed.
    assert sorted(products) == ["input", "input", "output"]


def test_a_weight_whose_slope_is_asked_for_gets_it():
    model = nn.Conv1d(GROUPS, GROUPS, 3, groups=GROUPS)
    inputs = torch.randn(2, GROUPS, 8)
    with CheapSecondDerivatives():
        functional_call(model, dict(model.named_parameters()), (inputs,)).square().sum().backward()
    found = [one.grad for one in model.parameters()]
    model.zero_grad()
    model(inputs).square().sum().backward()
    for one, other in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(GROUPS, 1, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.conv1d(inputs, self.weight, groups=GROUPS)


@pytest.mark.parametrize(
    ("model", "costly"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)), False),
        (nn.Sequential(nn.Conv2d(GROUPS, GROUPS, 3, groups=GROUPS)), True),
        (nn.utils.parametrizations.weight_norm(nn.Conv1d(GROUPS, GROUPS, 3, groups=GROUPS)), True),
        (nn.Sequential(nn.Flatten(), _Functional()), True),
    ],
    ids=["dense", "depthwise", "parametrised", "functional"],
)
def test_only_models_with_costly_layers_pay_for_the_replacement(model, costly):
    assert has_costly_layers(model) is costly


class _Inverted(nn.Module):
    """An inverted residual block, as in MobileNetV2."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = inputs + self.block(inputs)
        return result


@pytest.mark.parametrize(("functional", "gradients"), [(False, "graph"), (True, "graph"), (False, "adjoint")])
def test_simulations_use_it_and_clients_do_not(functional, gradients, products, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), _Inverted(4, GROUPS), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)).double()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    trainer = Trainer(model, LocalTraining(lr=0.1), functional=functional, as_attacker=True)
    batches = [(torch.randn(2, 3, 8, 8).double(), torch.tensor([0, 2])) for _ in range(2)]

    def slope() -> Any:
        inputs = batches[0][0].clone().requires_grad_()
        state = trainer.run(trainer.start(weights, None), [(inputs, batches[0][1]), batches[1]], gradients)
        loss = sum((state.weights[name] - value).sin().square().sum() for name, value in weights.items())
        return torch.autograd.grad(loss, inputs)[0]

    trainer.run(trainer.start(weights, None), batches)
    assert not products
    found = slope()
    assert products
    monkeypatch.setattr(convolutions, "GROUPS", 1000)
    torch.testing.assert_close(found, slope(), rtol=1e-9, atol=1e-12)
