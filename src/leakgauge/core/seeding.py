"""Seeds for independent parts of one run, so that no part's draws shift another's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *keys: object) -> int:
    """A seed for the part named by ``keys``, the same on every machine and in every process."""
    digest = hashlib.sha256(repr((int(seed), *keys)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *keys: object) -> torch.Generator:
    """A CPU random generator for the part named by ``keys``."""
    return torch.Generator().manual_seed(derive(seed, *keys))


@contextmanager
def seeded(seed: int, *keys: object) -> Iterator[None]:
    """Seed torch's global generators for the part named by ``keys``, and leave the caller's as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive(seed, *keys))
        yield
