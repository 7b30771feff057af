"""Audits that are killed or interrupted at random times, and started again. They end as one that was left alone."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from leakgauge.runtime.cache import Cache

TOML = """
[model]
name = "lenet"
[data]
name = "digits"
[training]
sends = "gradient"
samples = 1
[audit]
attacks = [{ name = "idlg", steps = 3 }, { name = "inverting_gradients", steps = 15 }]
clients = 4
"""
#: The number of kills in the long form, by engine. A cluster of Ray takes a minute to start.
LONG = {"in-process": 50, "processes": 50, "ray": 6}
#: The number of kills of one audit, which then finishes.
EACH = 5
WAYS = ("kill", "interrupt", "worker")


def start(folder, engine):
    command = [sys.executable, "-c", "from leakgauge.cli import main; main()", "audit", "audit.toml", "--quiet"]
    jobs = [] if engine == "in-process" else ["--jobs", "2"]
    return subprocess.Popen(
        [*command, "--output", "out", "--engine", engine, *jobs], cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(folder, engine):
    """Let an audit end, and return the seconds that it took."""
    began = time.monotonic()
    assert start(folder, engine).wait() == 0
    return time.monotonic() - began


def tables(folder):
    """Return the figures of an audit without its times."""
    found = json.loads((folder / "out" / "audit.json").read_text())
    assert found["complete"]
    rows = [line.split(",") for line in (folder / "out" / "results.csv").read_text().splitlines()]
    seconds = rows[0].index("seconds")
    return found["findings"], found["controls"], [row[:seconds] + row[seconds + 1 :] for row in rows]


def workers_of(process):
    """Return the worker processes of an audit."""
    try:
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return []


def results(folder):
    return len(Cache(folder / "out" / "cache")) if (folder / "out" / "cache").exists() else 0


def kill(process, way, chance):
    """Kill or interrupt an audit, or kill one of its workers. Return what was done."""
    workers = workers_of(process) if way == "worker" else []
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
        return "worker"
    process.send_signal(signal.SIGINT if way == "interrupt" else signal.SIGKILL)
    return "interrupt" if way == "interrupt" else "kill"


def assault(folder, engine, kills, longest, chance):
    """Kill an audit several times, each time at a random moment. Return the number of kills by their way."""
    done = dict.fromkeys(WAYS, 0)
    while sum(done.values()) < kills:
        before = results(folder)
        process = start(folder, engine)
        ways = list(WAYS)
        while ways:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, longest))
            if process.poll() is not None:
                break
            way = kill(process, chance.choice(ways), chance)
            done[way] += 1
            ways = ["kill", "interrupt"] if way == "worker" else []  # without a worker, the audit goes on
        assert process.wait() in (0, 130, -signal.SIGKILL, -signal.SIGINT)
        assert results(folder) >= before
        if before and process.returncode == 0:
            return done
    return done


def check(folder, engine, kills, seed):
    """Kill audits, let them finish, and compare them with an audit that was left alone."""
    chance, done, runs = random.Random(seed), dict.fromkeys(WAYS, 0), 0
    alone = folder / "alone"
    alone.mkdir()
    (alone / "audit.toml").write_text(TOML)
    longest = finish(alone, engine)
    while sum(done.values()) < kills:
        runs += 1
        target = folder / f"run-{runs}"
        target.mkdir()
        (target / "audit.toml").write_text(TOML)
        for way, number in assault(target, engine, min(EACH, kills - sum(done.values())), longest, chance).items():
            done[way] += number
        finish(target, engine)
        assert tables(target) == tables(alone)
        assert not list((target / "out").rglob(".*"))
    return done, runs


def test_two_kills_change_nothing(tmp_path):
    done, _ = check(tmp_path, "in-process", 2, seed=3)
    assert sum(done.values()) >= 2


@pytest.mark.long
@pytest.mark.parametrize("engine", [name for name in LONG if name != "ray" or find_spec("ray")])
def test_many_kills_change_nothing(tmp_path, engine, capsys):
    done, audits = check(tmp_path, engine, int(os.environ.get("LEAKGAUGE_KILLS", LONG[engine])), seed=1)
    with capsys.disabled():
        print(f"\n{engine}: kills {done} of {audits} audits, all tables as undisturbed")
