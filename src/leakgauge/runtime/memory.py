"""How much memory a task has taken, and how much there is. In bytes; what cannot be found out is not guessed.

By default the C library returns large tensors to the kernel when they are freed, and the kernel clears the pages of the
next ones: of attacks that make many such tensors a step, that is up to half of the time. :func:`reuse` ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
#: Of malloc.h, glibc: what is freed at the end of the heap stays up to so many bytes, the heap grows by so many more
#: than are needed, and what is larger than so many does not lie on it.
TRIM, PAD, OFF_THE_HEAP = -1, -2, -3
LARGEST = 2**31 - 1


def reuse() -> None:
    """Keep freed memory for what this process allocates next (glibc; elsewhere nothing happens)."""
    if (change := _c("mallopt")) is not None:
        for parameter, value in ((TRIM, LARGEST), (PAD, 64 * 2**20), (OFF_THE_HEAP, LARGEST)):
            change(parameter, value)


def give_back() -> None:
    """Return what is kept but not in use."""
    if (trim := _c("malloc_trim")) is not None:
        trim(0)


def _c(name: str) -> Any:
    """A function of the C library, where it has one of that name."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):
        return None


def forget_peak() -> None:
    """From now on, :func:`peak` is of what comes (Linux; elsewhere it is of the whole life of the process)."""
    give_back()
    with contextlib.suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")


def peak() -> int:
    """The most memory that this process has held."""
    found = _field(PROCESS / "status", "VmHWM:")
    if found is not None:
        return found
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def total() -> int:
    """What the machine has, or what this process's control groups let it have."""
    if sys.platform == "win32":
        return sys.maxsize
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(limit for limit, _ in _limits())])


def available() -> int:
    """What could be taken now without anything being swapped out or killed; on other systems than Linux, all."""
    machine = _field(Path("/proc/meminfo"), "MemAvailable:")
    found = [total() if machine is None else machine]
    found += [limit - used for limit, used in _limits()]
    return max(0, min(found))


def _limits() -> Iterator[tuple[int, int]]:
    """The limit and the use of each control group around this process that has a limit (versions 2 and 1)."""
    try:
        lines = (PROCESS / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = CGROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):  # in a container the path may be that of the host: then only the root is
            try:
                limit, used = ((group / name).read_text().strip() for name in names)
            except OSError:
                limit = used = "max"
            if limit.isdigit() and int(limit) < 2**60:  # version 1 writes "no limit" as a huge number
                cached = _field(group / "memory.stat", "inactive_file", unit=1) or 0
                yield int(limit), max(0, int(used) - cached)
            if group == root:
                break


def _field(path: Path, name: str, unit: int = 1024) -> int | None:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.split()[:1] == [name]:
                return unit * int(line.split()[1])
    return None
