"""How much memory there is and was taken, on a machine and within control groups."""

import platform
import subprocess
import sys

import pytest
import torch

from leakgauge.runtime import memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 2**20


def test_a_peak_is_of_what_came_since_it_was_forgotten():
    memory.forget_peak()
    before = memory.peak()
    held = torch.ones(64 * MIB // 4)
    high = memory.peak()
    assert 60 * MIB < high - before < 100 * MIB
    del held
    assert memory.peak() == pytest.approx(high, abs=MIB)
    memory.forget_peak()
    assert memory.peak() < high - 50 * MIB


def test_there_is_no_more_available_than_there_is():
    assert 0 < memory.available() <= memory.total()


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_limits_what_there_is(tmp_path, monkeypatch, version):
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
    assert memory.available() == 50 * MIB  # files that are only kept in memory can go


def test_elsewhere_than_on_linux_the_machine_has_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROCESS", tmp_path)
    assert memory.total() > 2**28
    assert memory.peak() > MIB
    memory.forget_peak()


def faults_and_given_back(prepare):
    """Page faults of ten tensors, one after the other, and what is given back of the last: in a process of its own."""
    code = f"""
import resource, torch
from leakgauge.runtime import memory
{prepare}
torch.ones(8 * 2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(8 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
held = torch.ones(8 * 2**20)
memory.forget_peak()
most = memory.peak()
del held
memory.forget_peak()
print(most - memory.peak())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_memory_is_used_again_without_the_kernel_and_given_back_when_a_task_is_done():
    usual, _ = faults_and_given_back("")
    reused, given_back = faults_and_given_back("memory.reuse()")
    assert reused < 0.25 * usual  # of the ten, one may still find no room
    assert given_back > 30 * MIB
