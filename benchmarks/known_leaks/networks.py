"""The networks of the rows that Leakgauge itself does not have."""

from collections.abc import Sequence

from torch import nn


def _block(before: int, after: int, stride: int, groups: int) -> list[nn.Module]:
    norm = nn.GroupNorm(groups, after) if groups else nn.Identity()
    return [nn.Conv2d(before, after, 3, stride, padding=1), norm, nn.ReLU()]


def group_norm_cnn(*, shape: Sequence[int], classes: int) -> nn.Module:
    """Return three convolutions with group norm, and a linear layer after them."""
    channels, height, width = shape
    return nn.Sequential(
        *_block(channels, 16, 1, 4),
        *_block(16, 32, 2, 4),
        *_block(32, 32, 2, 4),
        nn.Flatten(),
        nn.Linear(32 * (-(-height // 4)) * (-(-width // 4)), classes),
    )


def cifar_cnn(*, shape: Sequence[int], classes: int) -> nn.Module:
    """Return two convolutions and two dense layers."""
    channels, height, width = shape
    return nn.Sequential(
        *_block(channels, 16, 2, 0),
        *_block(16, 32, 2, 0),
        nn.Flatten(),
        nn.Linear(32 * (-(-height // 4)) * (-(-width // 4)), 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )
