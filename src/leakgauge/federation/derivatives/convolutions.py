r"""Grouped convolutions whose second derivatives cost no more than convolutions.

Let :math:`y = x * w` be the output of a convolution without bias. For a slope :math:`s` of the output, the slope of the
input is :math:`s \star w` and the slope of the weights is :math:`x \circ s`. Each of these three products is linear in
both factors, and the slopes of its factors are again such products:

====================  ==============================  ==============================
product               slope :math:`v` of the product
--------------------  --------------------------------------------------------------
                      slope of the first factor       slope of the second factor
====================  ==============================  ==============================
:math:`x * w`         :math:`v \star w`               :math:`x \circ v`
:math:`s \star w`     :math:`v * w`                   :math:`v \circ s`
:math:`x \circ s`     :math:`s \star v`               :math:`x * v`
====================  ==============================  ==============================

Each entry is one call of the library's convolution, for any number of groups. PyTorch's second derivative calls the
library once for each group instead, which is slow for depthwise convolutions. A transposed convolution is the second of
the products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.federation.derivatives.graph import needed

Sizes = tuple[int, ...]
Kind = Literal["output", "input", "weight"]
#: The products that are the slopes of the first and of the second factor of each product.
SLOPES: dict[Kind, tuple[Kind, Kind]] = {
    "output": ("input", "weight"),
    "input": ("output", "weight"),
    "weight": ("input", "output"),
}
#: From this number of groups, the second derivative of this module is faster than PyTorch's.
GROUPS = 16


@dataclass(frozen=True)
class _Geometry:
    """The shapes of a convolution's input and weights, and how the weights move over the input."""

    input: Sizes
    weight: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int


class _Product(torch.autograd.Function):
    """One of the three products of a convolution."""

    generate_vmap_rule = True

    @staticmethod
    def forward(first: Tensor, second: Tensor, kind: Kind, geometry: _Geometry) -> Tensor:
        moves = (geometry.stride, geometry.padding, geometry.dilation, False, (0,) * len(geometry.stride))
        if kind == "output":
            output: Tensor = torch.ops.aten.convolution(first, second, None, *moves, geometry.groups)
            return output
        # Of the factor whose slope is computed, only the shape is used.
        of_input = kind == "input"
        slope = first if of_input else second
        inputs = slope.new_empty(geometry.input) if of_input else first
        weight = second if of_input else slope.new_empty(geometry.weight)
        mask = [of_input, not of_input, False]
        slopes = torch.ops.aten.convolution_backward(slope, inputs, weight, None, *moves, geometry.groups, mask)
        result: Tensor = slopes[0 if of_input else 1]
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Kind, _Geometry], output: Tensor) -> None:
        first, second, ctx.kind, ctx.geometry = inputs
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        kinds = SLOPES[ctx.kind]
        factors = {
            "output": ((slope, second), (first, slope)),
            "input": ((slope, second), (slope, first)),
            "weight": ((second, slope), (first, slope)),
        }[ctx.kind]
        slopes = (
            _product(*factors[place], kinds[place], ctx.geometry) if wanted else None
            for place, wanted in enumerate(needed(ctx, 2))
        )
        return (*slopes, None, None)

    @staticmethod
    def jvp(ctx: Any, first: Tensor | None, second: Tensor | None, *_: None) -> Tensor | None:
        saved = ctx.saved_tensors
        parts = [] if first is None else [_product(first, saved[1], ctx.kind, ctx.geometry)]
        parts += [] if second is None else [_product(saved[0], second, ctx.kind, ctx.geometry)]
        return sum(parts[1:], parts[0]) if parts else None


def _product(first: Tensor, second: Tensor, kind: Kind, geometry: _Geometry) -> Tensor:
    result: Tensor = _Product.apply(first, second, kind, geometry)  # type: ignore[no-untyped-call]
    return result


def convolution(original: Callable[..., Tensor], dimensions: int) -> Callable[..., Tensor]:
    """Return a convolution with the arguments and the result of ``torch.conv1d``, ``conv2d`` or ``conv3d``.

    Args:
        original: PyTorch's convolution, which is used where it is as fast, and where the arguments are unusual.
        dimensions: The number of dimensions over which the weights move.
    """

    def replaced(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor:
        if (
            not _helps(input, weight, bias, groups, dimensions)
            or input.shape[-dimensions - 1] != groups * weight.shape[1]
        ):
            return original(input, weight, bias, stride, padding, dilation, groups)
        steps, gaps = _sizes(stride, dimensions), _sizes(dilation, dimensions)
        if isinstance(padding, str):
            if padding not in ("same", "valid") or (padding == "same" and max(steps) > 1):
                return original(input, weight, bias, stride, padding, dilation, groups)
            totals = [gap * (side - 1) for gap, side in zip(gaps, weight.shape[2:], strict=True)]
            input, padding = _padded(input, padding, totals)
        input, weight, bias = _cast(input, weight, bias)
        inputs = input if input.dim() == dimensions + 2 else input.unsqueeze(0)
        shapes = tuple(inputs.shape), tuple(weight.shape)
        geometry = _Geometry(*shapes, steps, _sizes(padding, dimensions), gaps, groups)
        output = _with_bias(_product(inputs, weight, "output", geometry), bias)
        return output if inputs is input else output.squeeze(0)

    return replaced


def transposed_convolution(original: Callable[..., Tensor], dimensions: int) -> Callable[..., Tensor]:
    """Return a transposed convolution with the arguments and the result of PyTorch's.

    Args:
        original: PyTorch's ``conv_transpose1d``, ``2d`` or ``3d``, which is used where it is as fast, and where the
            arguments are unusual.
        dimensions: The number of dimensions over which the weights move.
    """

    def replaced(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        dilation: int | Sequence[int] = 1,
    ) -> Tensor:
        if not _helps(input, weight, bias, groups, dimensions) or input.shape[-dimensions - 1] != weight.shape[0]:
            return original(input, weight, bias, stride, padding, output_padding, groups, dilation)
        input, weight, bias = _cast(input, weight, bias)
        inputs = input if input.dim() == dimensions + 2 else input.unsqueeze(0)
        steps, pads, gaps = (_sizes(value, dimensions) for value in (stride, padding, dilation))
        sides = zip(
            inputs.shape[2:], weight.shape[2:], steps, pads, gaps, _sizes(output_padding, dimensions), strict=True
        )
        result = [(n - 1) * step - 2 * pad + gap * (k - 1) + more + 1 for n, k, step, pad, gap, more in sides]
        shape = (len(inputs), groups * weight.shape[1], *result)
        geometry = _Geometry(shape, tuple(weight.shape), steps, pads, gaps, groups)
        output = _with_bias(_product(inputs, weight, "input", geometry), bias)
        return output if inputs is input else output.squeeze(0)

    return replaced


def _helps(input: Tensor, weight: Tensor, bias: Tensor | None, groups: int, dimensions: int) -> bool:
    """Return whether this module's convolution is faster. Arguments that PyTorch may refuse are left to PyTorch."""
    if groups < GROUPS or weight.dim() != dimensions + 2 or input.dim() not in (dimensions + 1, dimensions + 2):
        return False
    tensors = [input, weight] if bias is None else [input, weight, bias]
    if any(one.device.type != "cpu" or one.layout is not torch.strided for one in tensors):
        return False
    if len({one.dtype for one in tensors}) > 1 or not input.dtype.is_floating_point:
        return False
    return weight.shape[0] % groups == 0 and input.numel() > 0


def _sizes(value: int | Sequence[int], dimensions: int) -> Sizes:
    """Return one number for each dimension."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dimensions if len(values) == 1 else values


def _padded(input: Tensor, padding: str, totals: list[int]) -> tuple[Tensor, Sizes]:
    """Return the input and the numbers of zeros on each side that padding in words stands for.

    If the two sides of a dimension differ, the further zero is added to the input.
    """
    if padding == "valid":
        return input, (0,) * len(totals)
    if any(total % 2 for total in totals):
        input = F.pad(input, [side for total in reversed(totals) for side in (0, total % 2)])
    return input, tuple(total // 2 for total in totals)


def _cast(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the tensors in the precision in which autocast would compute the convolution."""
    kind = input.device.type
    if not torch.is_autocast_enabled(kind) or input.dtype == torch.double:
        return input, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    return input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _with_bias(output: Tensor, bias: Tensor | None) -> Tensor:
    return output if bias is None else output + bias.view(-1, *[1] * (output.dim() - 2))
