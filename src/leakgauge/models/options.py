"""Checks of the options of networks, and a context manager that seeds the initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput, UnknownName

Value = TypeVar("Value")
#: The largest number of layers that an option can list.
MOST_SIZES = 1000

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed the initial weights of models that are built inside the ``with`` block.

    Args:
        seed: The seed. Torch's global random state is restored after the block. If the seed is ``None``, the initial
            weights are drawn from torch's global random state, which is not restored.
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def choose(kind: str, name: str, table: Mapping[str, Value]) -> Value:
    """Return the value with the given name, or raise an error that lists the valid names.

    Args:
        kind: A word for the values, such as "initialisation". The error message contains it.
        name: The name of the value.
        table: A dictionary from all valid names to values.
    """
    if name not in table:
        raise UnknownName(kind, name, table)
    return table[name]


def sizes(name: str, values: object, count: int | None = None) -> tuple[int, ...]:
    """Return the values as a tuple of positive whole numbers, or raise an error.

    Args:
        name: The name of the option, for the error message.
        values: The values to check.
        count: The expected number of values. By default, any number of values is valid.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InvalidInput(f"{name} must be several whole numbers, not {values!r}")
    if count is not None and len(values) != count:
        raise InvalidInput(f"{name} must be {count} whole numbers, not {len(values)}: {tuple(values)}")
    if len(values) > MOST_SIZES:
        raise InvalidInput(f"{name} may have up to {MOST_SIZES:,} numbers, not {len(values):,}")
    return tuple(whole_number(f"each number of {name}", value) for value in values)


def image_shape(shape: Sequence[int], *, at_least: int = 1) -> tuple[int, int, int]:
    """Return the shape as a tuple, or raise an error if it is not the shape of an image.

    Args:
        shape: The (channels, height, width) of an image.
        at_least: The smallest valid height and width.
    """
    channels, height, width = sizes("an image's shape (channels, height, width)", shape, 3)
    if min(height, width) < at_least:
        raise InvalidInput(f"this network needs images of at least {at_least} x {at_least}, not {height} x {width}")
    return channels, height, width


def flat_size(shape: Sequence[int]) -> int:
    """Return the number of values in one sample of this shape."""
    return math.prod(sizes("a sample's shape", shape))
