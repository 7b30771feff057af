r"""The mean of a client's inputs, read off the gradients of a dense first layer.

The gradient of a dense first layer is :math:`\sum_i \delta_i x_i^T`, and that of its bias is :math:`\sum_i \delta_i`.
With inputs near their mean, the first is the second times that mean. So the regression of the first on the second, over
all neurons and rounds, gives the mean of the inputs. Its residuals show how far the columns spread, relative to each
other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.core.observation import DataSpec
from leakgauge.core.params import Params

#: The least number of neurons in the first layer. Fewer neurons weigh the samples almost as the labels do.
NEURONS = 8
#: The least squared gradient of the bias, as a share of that of the weights. Anything below is rounding error.
SILENT = 1e-8


def input_statistics(gradients: Params, data: DataSpec) -> tuple[Tensor, Tensor] | None:
    """Return the mean of a client's inputs, normalised for the model, and the residual of each column.

    Return ``None`` where the first layer does not show them. It must be dense, with a bias and with enough neurons.
    Few neurons weigh the samples as the labels do. A bias that a normalisation removes again has no gradient.

    Args:
        gradients: The gradients of the rounds, with a first dimension of rounds.
        data: The shape of the samples.
    """
    (name, weight), (second, bias) = [*gradients.items(), ("", torch.empty(0))][:2]
    if weight.ndim != 3 or weight.shape[2] != math.prod(data.shape) or bias.shape != weight.shape[:2]:
        return None
    same_layer = name.rpartition(".")[0] == second.rpartition(".")[0]
    bias_moves = float(bias.square().sum()) > SILENT * float(weight.square().sum())
    if not same_layer or not bias_moves or weight.shape[1] < NEURONS:
        return None
    mean = (weight * bias.unsqueeze(-1)).sum((0, 1)) / bias.square().sum()
    residual = (weight - bias.unsqueeze(-1) * mean).square().mean((0, 1)).sqrt()
    return mean.reshape(data.shape), residual.reshape(data.shape)
