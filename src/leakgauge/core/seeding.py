"""Independent seeds for the parts of one run, so that the random numbers of one part do not affect another part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *keys: object) -> int:
    """Return the seed of one part of a run. It is the same on every machine and in every process.

    Args:
        seed: The seed of the run.
        keys: The values that together name the part.
    """
    digest = hashlib.sha256(repr((int(seed), *keys)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *keys: object) -> torch.Generator:
    """Return a random generator on the CPU for one part of a run.

    Args:
        seed: The seed of the run.
        keys: The values that together name the part.
    """
    return torch.Generator().manual_seed(derive(seed, *keys))


@contextmanager
def seeded(seed: int, *keys: object) -> Iterator[None]:
    """Seed torch's global generators inside the block, and restore them afterwards.

    Args:
        seed: The seed of the run.
        keys: The values that together name the part.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive(seed, *keys))
        yield
