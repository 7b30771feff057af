"""Functions that measure the memory of this process and of the machine, and that speed up allocation. Units are bytes.

By default, the C library returns the memory of large tensors to the kernel when the tensors are freed. The kernel must
then clear the memory that it provides for the next tensors. For attacks that make many large tensors in each step, this
clearing takes up to half of the running time. :func:`reuse` avoids this cost.
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
#: Parameters of glibc's ``mallopt`` (malloc.h): the number of freed bytes at the end of the heap that are kept, the
#: number of bytes by which the heap grows beyond the need, and the size from which a block lies outside the heap.
TRIM, PAD, OFF_THE_HEAP = -1, -2, -3
LARGEST = 2**31 - 1


def reuse() -> None:
    """Keep freed memory in this process for later allocations. This works only with the C library glibc."""
    if (mallopt := _c_function("mallopt")) is not None:
        for parameter, value in ((TRIM, LARGEST), (PAD, 64 * 2**20), (OFF_THE_HEAP, LARGEST)):
            mallopt(parameter, value)


def give_back() -> None:
    """Give the unused memory of this process back to the kernel."""
    if (malloc_trim := _c_function("malloc_trim")) is not None:
        malloc_trim(0)


def _c_function(name: str) -> Any:
    """Return a function of the C library, or ``None`` if the library has no function of that name."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):
        return None


def reset_peak() -> None:
    """Make :func:`peak` count only the memory that is held from now on.

    Only Linux can do this. On other systems, :func:`peak` counts from the start of the process.
    """
    give_back()
    with contextlib.suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")


def peak() -> int:
    """Return the largest amount of memory that this process has held, or 0 on Windows, where it is unknown."""
    resident = _field(PROCESS / "status", "VmHWM:")
    if resident is not None:
        return resident
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def total() -> int:
    """Return the memory of the machine, or the memory limit of this process's control group if the limit is lower."""
    if sys.platform == "win32":
        return sys.maxsize
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(limit for limit, _ in _limits())])


def available() -> int:
    """Return the memory that can be allocated now without swapping. On systems other than Linux, return the total."""
    machine = _field(Path("/proc/meminfo"), "MemAvailable:")
    amounts = [total() if machine is None else machine]
    amounts += [limit - used for limit, used in _limits()]
    return max(0, min(amounts))


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use of memory for each control group (version 1 or 2) that limits this process."""
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
        for group in (inner, *inner.parents):  # in a container the path may be the host's, and only the root exists
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
    """Return the number after ``name`` in a kernel file such as ``/proc/meminfo``, times ``unit``.

    Return ``None`` if there is no such file or no such name in the file.
    """
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.split()[:1] == [name]:
                return unit * int(line.split()[1])
    return None
