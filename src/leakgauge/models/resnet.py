"""Residual networks (He et al., CVPR 2016), as in the papers Inverting Gradients, AGIC and AWA on gradient inversion.

A network consists of stages, and a stage consists of blocks of two convolutions. From one stage to the next, the height
and width of the features halve, and the number of channels (the width of the stage) doubles. If a block changes the
shape, its shortcut is a 1x1 convolution.

===============  ===========================  ==================
network          widths of the stages         blocks in a stage
===============  ===========================  ==================
``resnet18``     64, 128, 256, 512            2
``resnet20``     16, 32, 64 times ``width``   3
===============  ===========================  ==================

The initial weights of convolutions are drawn from Kaiming's normal distribution with fan-out (``"kaiming"``), or as
PyTorch does by default (``"default"``). The choice affects attacks. With ResNet20-4 and ``"kaiming"``, Leakgauge's
attack reconstructs one image as published, but fails on four images. With ``"default"``, the attack reconstructs both
one image and four images, in fewer steps (docs/benchmarks.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from leakgauge.core.checks import whole_number
from leakgauge.models.options import choose, image_shape, seeded

Norm = Literal["batch", "group", "none"]
Initialisation = Literal["kaiming", "default"]

# Group normalisation uses 32 groups, or the largest divisor of 32 that divides the number of channels.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(math.gcd(32, channels), channels),
    "none": lambda channels: nn.Identity(),
}


def _kaiming(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


INITIALISATIONS: dict[str, Callable[[nn.Module], None]] = {"kaiming": _kaiming, "default": lambda model: None}


def _convolution(before: int, after: int, kernel: int, stride: int, norm: str) -> list[nn.Module]:
    """Return a convolution with same padding, and the normalisation layer that follows it.

    The convolution has a bias only if ``norm`` is "none".
    """
    return [
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=norm == "none"),
        choose("norm", norm, NORMS)(after),
    ]


def _cifar_stem(channels: int, width: int, norm: str) -> nn.Sequential:
    return nn.Sequential(*_convolution(channels, width, 3, 1, norm), nn.ReLU())


def _imagenet_stem(channels: int, width: int, norm: str) -> nn.Sequential:
    return nn.Sequential(*_convolution(channels, width, 7, 2, norm), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))


STEMS: dict[str, Callable[[int, int, str], nn.Sequential]] = {
    "cifar": _cifar_stem,
    "imagenet": _imagenet_stem,
}


class BasicBlock(nn.Module):
    """A block of two 3x3 convolutions (the body) with a shortcut. It computes ``relu(body(x) + shortcut(x))``."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        first, second = _convolution(before, after, 3, stride, norm), _convolution(after, after, 3, 1, norm)
        self.body = nn.Sequential(*first, nn.ReLU(), *second)
        same = before == after and stride == 1
        self.shortcut = nn.Sequential(*([] if same else _convolution(before, after, 1, stride, norm)))
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output of the block."""
        features: Tensor = self.activation(self.body(inputs) + self.shortcut(inputs))
        return features


class ResNet(nn.Module):
    """A network of a first layer (the stem), stages of blocks, global average pooling and a linear layer."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        widths: Sequence[int],
        blocks: int,
        norm: str,
        stem: str,
    ) -> None:
        super().__init__()
        before = widths[0]
        self.stem = choose("stem", stem, STEMS)(shape[0], before, norm)
        stages: list[nn.Module] = []
        for number, after in enumerate(widths):
            for block in range(blocks):
                stages.append(BasicBlock(before, after, 2 if number and not block else 1, norm))
                before = after
        self.features = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the class scores, of shape (N, classes)."""
        scores: Tensor = self.head(self.features(self.stem(inputs)).mean((2, 3)))
        return scores


def resnet18(
    *,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    stem: Literal["cifar", "imagenet"] = "cifar",
    norm: Norm = "batch",
    initialisation: Initialisation = "kaiming",
    seed: int | None = None,
) -> ResNet:
    """Build ResNet18.

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        stem: The first layer. "cifar" is a 3x3 convolution. "imagenet" is the original 7x7 convolution of stride 2 with
            max pooling.
        norm: The normalisation, which is "batch", "group" or "none".
        initialisation: "kaiming" (normal, fan-out), or "default", which is PyTorch's default.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> sum(parameter.numel() for parameter in resnet18().parameters())
    11173962
    """
    initialise = choose("initialisation of resnet18", initialisation, INITIALISATIONS)
    with seeded(seed):
        model = ResNet(image_shape(shape), whole_number("classes", classes), (64, 128, 256, 512), 2, norm, stem)
        initialise(model)
    return model


def resnet20(
    *,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    width: int = 1,
    norm: Norm = "batch",
    initialisation: Initialisation = "kaiming",
    seed: int | None = None,
) -> ResNet:
    """Build ResNet20 for CIFAR.

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        width: The factor by which the number of channels of every stage is multiplied.
        norm: The normalisation, which is "batch", "group" or "none".
        initialisation: "kaiming" (normal, fan-out), or "default", which is PyTorch's default.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> import torch
    >>> resnet20()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    initialise = choose("initialisation of resnet20", initialisation, INITIALISATIONS)
    widths = [size * whole_number("width", width) for size in (16, 32, 64)]
    with seeded(seed):
        model = ResNet(image_shape(shape), whole_number("classes", classes), widths, 3, norm, "cifar")
        initialise(model)
    return model


def resnet20_4(
    *,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    norm: Norm = "batch",
    initialisation: Initialisation = "kaiming",
    seed: int | None = None,
) -> ResNet:
    """Build ResNet20-4, AGIC's network for CIFAR-10, which is ResNet20 with four times the width.

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        norm: The normalisation, which is "batch", "group" or "none".
        initialisation: "kaiming" (normal, fan-out), or "default", which is PyTorch's default.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> resnet20_4().head.in_features
    256
    """
    return resnet20(shape=shape, classes=classes, width=4, norm=norm, initialisation=initialisation, seed=seed)


NETWORKS = (resnet18, resnet20, resnet20_4)
