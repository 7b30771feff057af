"""Checks of the files that users name, before anything is read from them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from leakgauge.core.errors import CorruptFile

#: The words for what a path may name instead of a file.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def regular_file(path: Path, largest: int | None = None) -> Path:
    """Return the path if it names a file, and raise an error if it names a pipe, a device, a folder or nothing.

    A pipe or a device may have no end, so reading it may never end.

    Args:
        path: The path. Symbolic links are followed.
        largest: The largest size in bytes. By default, there is no limit.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as problem:  # a ValueError for a zero character in the name
        raise CorruptFile(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem})") from problem
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise CorruptFile(f"{path}: cannot be read, because it is {kind} and not a file. Name a file")
    if largest is not None and status.st_size > largest:
        raise CorruptFile(
            f"{path}: holds {status.st_size / 2**20:,.0f} MiB, more than the limit of {largest / 2**20:,.0f} MiB. "
            "Name a smaller file"
        )
    return path


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or a large number if the system does not state it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**40
