"""Layers whose second derivatives are cheap, in place of PyTorch's, for any model.

An attack differentiates a client's gradient, so that it needs the second derivative of every layer. PyTorch computes
some of them slowly. Inside :class:`CheapSecondDerivatives`, calls of these layers by a model are replaced. The results
and all derivatives stay the same, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from leakgauge.federation.derivatives.convolutions import GROUPS, convolution, transposed_convolution
from leakgauge.federation.derivatives.recurrent import lstm

#: PyTorch's functions that are replaced.
REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.conv1d: convolution(torch.conv1d, 1),
    torch.conv2d: convolution(torch.conv2d, 2),
    torch.conv3d: convolution(torch.conv3d, 3),
    torch.conv_transpose1d: transposed_convolution(torch.conv_transpose1d, 1),
    torch.conv_transpose2d: transposed_convolution(torch.conv_transpose2d, 2),
    torch.conv_transpose3d: transposed_convolution(torch.conv_transpose3d, 3),
    torch.lstm: lstm(torch.lstm),
}


class CheapSecondDerivatives(TorchFunctionMode):
    """A ``with`` block in which the calls of some layers are replaced by equal ones with cheap second derivatives."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch, or its replacement."""
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


def has_costly_layers(model: nn.Module) -> bool:
    """Return whether a model may call a layer that :class:`CheapSecondDerivatives` replaces.

    For a small model without such layers, the block itself would cost some per cent of a step.

    Args:
        model: The model, which may also call PyTorch's functions without their modules.
    """
    return any(_is_costly(module) for module in model.modules())


def _is_costly(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.conv._ConvNd):
        return module.groups >= GROUPS
    if isinstance(module, nn.LSTM):
        return True
    # Weights of this shape in any other module may be those of a convolution, which need not be a module.
    return any(value.dim() > 2 for value in module.parameters(recurse=False))
