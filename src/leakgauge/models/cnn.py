"""The networks of Data Leakage in Federated Averaging (DLF; Dimitrov et al., TMLR 2022).

The networks have 3x3 convolutions with same padding, each followed by ReLU and 2x2 average pooling. Two dense layers
come after the convolutions. The table gives the number of channels and the sizes of the dense layers:

================  =============  ========  ========
network           convolutions   dense     outputs
================  =============  ========  ========
``dlf_femnist``   32, 64         100       62
``dlf_cifar100``  64, 128        200       100
================  =============  ========  ========

``initialisation="lecun"`` is the initialisation of the authors' networks, which is Flax's default. This initialisation
draws kernels from a truncated normal distribution of variance 1 / inputs, and sets biases to zero.
``initialisation="default"`` is PyTorch's default. It draws smaller weights, and attacks then recover less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from leakgauge.core.checks import whole_number
from leakgauge.models.options import choose, image_shape, seeded, sizes


def _lecun_normal(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            # The truncation at two standard deviations multiplies the standard deviation by 0.8796 (LeCun et al. 1998,
            # Flax).
            deviation = math.sqrt(1 / module.weight[0].numel()) / 0.87962566103423978
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


INITIALISATIONS: Mapping[str, Callable[[nn.Module], None]] = {"lecun": _lecun_normal, "default": lambda model: None}


class ConvolutionalNetwork(nn.Module):
    """A network of convolutions with pooling, one hidden dense layer and one linear layer. See :func:`cnn`."""

    def __init__(self, shape: tuple[int, int, int], classes: int, channels: tuple[int, ...], dense: int) -> None:
        super().__init__()
        before, height, width = shape
        layers: list[nn.Module] = []
        for after in channels:
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
            before, height, width = after, height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.dense = nn.Linear(before * height * width, dense)
        self.activation = nn.ReLU()
        self.head = nn.Linear(dense, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the class scores, of shape (N, classes)."""
        hidden = self.activation(self.dense(self.features(inputs).flatten(1)))
        scores: Tensor = self.head(hidden)
        return scores


def cnn(
    *,
    shape: Sequence[int],
    classes: int,
    channels: Sequence[int],
    dense: int,
    initialisation: str = "lecun",
    seed: int | None = None,
) -> ConvolutionalNetwork:
    """Build a convolutional network of any size, like those of DLF (Dimitrov et al., TMLR 2022).

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        channels: The number of channels of each convolution.
        dense: The size of the hidden dense layer.
        initialisation: "lecun", which the authors use, or "default", which is PyTorch's default.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> import torch
    >>> cnn(shape=(1, 8, 8), classes=3, channels=(4,), dense=5)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """
    widths = sizes("channels", channels)
    image = image_shape(shape, at_least=2 ** len(widths))
    initialise = choose("initialisation", initialisation, INITIALISATIONS)
    with seeded(seed):
        model = ConvolutionalNetwork(image, whole_number("classes", classes), widths, whole_number("dense", dense))
        initialise(model)
    return model


def dlf_femnist(
    *,
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 62,
    channels: Sequence[int] = (32, 64),
    dense: int = 100,
    initialisation: str = "lecun",
    seed: int | None = None,
) -> ConvolutionalNetwork:
    """Build the network of DLF (Dimitrov et al., TMLR 2022) for FEMNIST.

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        channels: The number of channels of each convolution.
        dense: The size of the hidden dense layer.
        initialisation: "lecun", which the authors use, or "default", which is PyTorch's default.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> sum(parameter.numel() for parameter in dlf_femnist().parameters())
    338778
    """
    return cnn(shape=shape, classes=classes, channels=channels, dense=dense, initialisation=initialisation, seed=seed)


def dlf_cifar100(
    *,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 100,
    channels: Sequence[int] = (64, 128),
    dense: int = 200,
    initialisation: str = "lecun",
    seed: int | None = None,
) -> ConvolutionalNetwork:
    """Build the network of DLF (Dimitrov et al., TMLR 2022) for CIFAR-100.

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        channels: The number of channels of each convolution.
        dense: The size of the hidden dense layer.
        initialisation: "lecun", which the authors use, or "default", which is PyTorch's default.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> sum(parameter.numel() for parameter in dlf_cifar100().parameters())
    1734348
    """
    return cnn(shape=shape, classes=classes, channels=channels, dense=dense, initialisation=initialisation, seed=seed)


NETWORKS = (dlf_femnist, dlf_cifar100)
