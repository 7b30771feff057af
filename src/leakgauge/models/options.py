"""What the networks' options have in common: checks, seeding, initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from leakgauge.core.errors import InvalidInput, UnknownName

Value = TypeVar("Value")

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Draw the weights made inside from ``seed``, and leave torch's global random state as it was."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def choose(what: str, name: str, table: Mapping[str, Value]) -> Value:
    """The entry called ``name``, or an error that lists the valid names."""
    if name not in table:
        raise UnknownName(what, name, table)
    return table[name]


def whole(what: str, value: object) -> int:
    """A whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{what} must be a whole number of at least 1, not {value!r}")
    return value


def sizes(what: str, values: object, count: int | None = None) -> tuple[int, ...]:
    """Positive whole numbers, ``count`` of them."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InvalidInput(f"{what} must be several whole numbers, not {values!r}")
    if count is not None and len(values) != count:
        raise InvalidInput(f"{what} must be {count} whole numbers, not {len(values)}: {tuple(values)}")
    return tuple(whole(f"each number of {what}", value) for value in values)


def image_shape(shape: Sequence[int], *, at_least: int = 1) -> tuple[int, int, int]:
    """A (channels, height, width) whose sides are not too small for the network."""
    channels, height, width = sizes("an image's shape (channels, height, width)", shape, 3)
    if min(height, width) < at_least:
        raise InvalidInput(f"this network needs images of at least {at_least} x {at_least}, not {height} x {width}")
    return channels, height, width


def flat_size(shape: Sequence[int]) -> int:
    """How many numbers one sample of this shape holds."""
    return math.prod(sizes("a sample's shape", shape))
