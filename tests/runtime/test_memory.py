"""The memory of a process, of a machine and of control groups."""

import platform
import statistics
import subprocess
import sys

import pytest
import torch

from leakgauge.runtime import memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 2**20


def test_a_peak_counts_from_its_reset():
    memory.reset_peak()
    before = memory.peak()
    held = torch.ones(64 * MIB // 4)
    high = memory.peak()
    assert 60 * MIB < high - before < 100 * MIB
    del held
    assert memory.peak() == pytest.approx(high, abs=MIB)
    memory.reset_peak()
    assert memory.peak() < high - 50 * MIB


def test_no_more_is_available_than_the_total():
    assert 0 < memory.available() <= memory.total()


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_limits_the_total(tmp_path, monkeypatch, version):
    process, groups = tmp_path / "self", tmp_path / "cgroup"
    root = groups if version == 2 else groups / "memory"
    inner = root / "outer" / "inner"
    inner.mkdir(parents=True)
    process.mkdir()
    (process / "cgroup").write_text("0::/outer/inner\n" if version == 2 else "5:cpu:/\n4:memory:/outer/inner\n0::/\n")
    limit, used = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    (inner / limit).write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    (inner / used).write_text("1\n")
    (inner.parent / limit).write_text(f"{100 * MIB}\n")
    (inner.parent / used).write_text(f"{80 * MIB}\n")
    (inner.parent / "memory.stat").write_text(f"anon 3\ninactive_file {30 * MIB}\n")
    monkeypatch.setattr(memory, "PROCESS", process)
    monkeypatch.setattr(memory, "CGROUPS", groups)
    assert memory.total() == 100 * MIB
    assert memory.available() == 50 * MIB  # the kernel can drop cached files


def test_systems_without_proc_have_a_total_and_a_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROCESS", tmp_path)
    assert memory.total() > 2**28
    assert memory.peak() > MIB
    memory.reset_peak()


FAULTS = """
import resource, torch
from leakgauge.runtime import memory
{prepare}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(30):
    before = faults()
    torch.ones(8 * 2**20)
    print(faults() - before)
"""
GIVEN_BACK = """
import torch
from leakgauge.runtime import memory
memory.reuse()
for _ in range(5):
    held = torch.ones(8 * 2**20)
    memory.reset_peak()
    most = memory.peak()
    del held
    memory.reset_peak()
    print(most - memory.peak())
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")


def numbers(code):
    """The numbers that a program prints, in its own process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@glibc
def test_memory_is_reused_without_the_kernel():
    """Count the page faults of thirty tensors, one after the other.

    The first tensors may not fit exactly into the gap that the one before left. How many these are depends on where the
    kernel places the heap. The median leaves them out, and the faults that a busy machine adds to single tensors.
    """
    usual, reused = (statistics.median(numbers(FAULTS.format(prepare=line))) for line in ("", "memory.reuse()"))
    assert reused < 0.25 * usual


@glibc
def test_memory_is_given_back_when_a_task_is_done():
    """The largest of five counts, because a machine without free memory may have taken the pages before."""
    assert max(numbers(GIVEN_BACK)) > 30 * MIB
