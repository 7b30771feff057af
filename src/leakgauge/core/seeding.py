"""Seeds for the different purposes of one run, so that random numbers for one purpose do not affect another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *keys: object) -> int:
    """Return the seed for one purpose in a run. The result is the same on every machine and in every process.

    Args:
        seed: The seed of the run.
        keys: The values that together name the purpose, such as ``"random start"``.
    """
    digest = hashlib.sha256(repr((int(seed), *keys)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *keys: object) -> torch.Generator:
    """Return a random generator on the CPU, which is seeded for one purpose in a run.

    Args:
        seed: The seed of the run.
        keys: The values that together name the purpose, such as ``"random start"``.
    """
    return torch.Generator().manual_seed(derive(seed, *keys))


@contextmanager
def seeded(seed: int, *keys: object) -> Iterator[None]:
    """Seed torch's global random generators inside the ``with`` block, and restore them afterwards.

    Args:
        seed: The seed of the run.
        keys: The values that together name the purpose, such as ``"random start"``.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive(seed, *keys))
        yield
