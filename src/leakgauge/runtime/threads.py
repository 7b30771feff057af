"""The number of threads of a computation, which may change the last bits of its results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the ``with`` block, as workers do, so that every engine gives the same bits."""
    import torch  # not at the top, so that the command line starts quickly

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
