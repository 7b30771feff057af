r"""The mean of a client's inputs, computed from the gradients of a dense first layer.

Let :math:`x_i` be the input of sample :math:`i`, and :math:`\delta_i` the gradient of its loss with respect to the
outputs of a dense first layer. The weights of the layer have the gradient :math:`\sum_i \delta_i x_i^T`. The bias has
the gradient :math:`\sum_i \delta_i`. If the inputs are near their mean, the gradient of the weights is the gradient of
the bias times this mean. So the regression of the weights' gradient on the bias's gradient, over all neurons and
rounds, gives the mean of the inputs. The residuals of the regression show the relative spread of the columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.core.observation import DataSpec
from leakgauge.core.params import Params

#: The least number of neurons in the first layer. With fewer neurons, the gradients weight the samples almost as the
#: labels do.
NEURONS = 8
#: The least squared gradient of the bias, as a share of the squared gradient of the weights. A smaller share is
#: rounding error.
SILENT = 1e-8


def input_statistics(gradients: Params, data: DataSpec) -> tuple[Tensor, Tensor] | None:
    """Return the mean of a client's inputs, normalised for the model, and a residual for each column.

    Columns with a larger spread have larger residuals.

    The result is ``None`` if the first layer does not reveal the inputs. The layer must be dense, with enough neurons
    and with a bias that has a gradient. With few neurons, the gradients weight each sample according to its label, and
    the result would not be the mean. If a later normalisation removes the bias, the bias has no gradient.

    Args:
        gradients: The client's gradients. The first dimension of each tensor is the round.
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
