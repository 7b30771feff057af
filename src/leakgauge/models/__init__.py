"""The networks that papers on attacks use, and the function :func:`build`, which builds these or your own network.

Every network takes ``shape`` (the shape of one sample), ``classes`` (the number of outputs) and ``seed``. The last
layer of every network is a linear layer called ``head``. No network has in-place operations, because attacks
differentiate the network twice.
"""

from __future__ import annotations

from leakgauge.models.cnn import dlf_cifar100, dlf_femnist
from leakgauge.models.lenet import lenet
from leakgauge.models.mlp import mlp
from leakgauge.models.recipe import Recipe, recipe_of
from leakgauge.models.registry import MODELS, build, parameters
from leakgauge.models.resnet import resnet18, resnet20, resnet20_4
from leakgauge.models.vit import vit

__all__ = [
    "MODELS",
    "Recipe",
    "build",
    "dlf_cifar100",
    "dlf_femnist",
    "lenet",
    "mlp",
    "parameters",
    "recipe_of",
    "resnet18",
    "resnet20",
    "resnet20_4",
    "vit",
]
