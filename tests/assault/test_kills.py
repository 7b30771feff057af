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
from pathlib import Path

import pytest

import leakgauge as lg
from leakgauge.runtime.cache import Cache
from tests.runtime.work import children, family

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
#: The number of kills in the long form of each engine.
LONG = {"in-process": 50, "processes": 50, "ray": 50}
#: The number of kills of one audit, which then finishes.
EACH = {"in-process": 5, "processes": 5, "ray": 20}
#: The largest number of workers that are killed in one start. A cluster of Ray takes up to a minute to start.
WORKERS = {"in-process": 0, "processes": 1, "ray": 8}
WAYS = ("kill", "interrupt", "worker")


def start(folder, engine):
    command = [sys.executable, "-c", "from leakgauge.cli import main; main()", "audit", "audit.toml", "--quiet"]
    jobs = [] if engine == "in-process" else ["--jobs", "2"]
    with (folder / "errors.txt").open("w") as errors:
        return subprocess.Popen(
            [*command, "--output", "out", "--engine", engine, *jobs], cwd=folder, stdout=subprocess.DEVNULL,
            stderr=errors, env={**os.environ, "OMP_NUM_THREADS": "1"},
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


def workers_of(process, engine):
    """Return the worker processes of an audit. Those of Ray are further down, beside agents of the cluster itself."""
    if engine != "ray":
        return children(process.pid)
    named = {child: name_of(child) for child in family(process.pid)}
    return [child for child, name in named.items() if name.startswith(b"ray::") and b"Agent" not in name]


def name_of(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def results(folder):
    return len(Cache(folder / "out" / "cache")) if (folder / "out" / "cache").exists() else 0


def wait(process, seconds):
    """Wait for an audit, and return whether it has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


def kill(process, engine, way, chance):
    """Kill or interrupt an audit, or kill one of its workers as soon as it has one. Return whether it was done."""
    if way != "worker":
        process.send_signal(signal.SIGINT if way == "interrupt" else signal.SIGKILL)
        return True
    while not (workers := workers_of(process, engine)):
        if wait(process, 0.1):
            return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(workers), signal.SIGKILL)
    return True


def assault(folder, engine, kills, longest, chance):
    """Kill an audit several times, each time at a random moment. Return the number of kills by their way."""
    done = dict.fromkeys(WAYS, 0)
    while sum(done.values()) < kills:
        before = results(folder)
        process = start(folder, engine)
        ways = ["worker"] * chance.randint(0, WORKERS[engine]) + [chance.choice(["kill", "interrupt"])]
        for way in ways:
            if wait(process, chance.uniform(0.0, longest / len(ways))) or not kill(process, engine, way, chance):
                break
            done[way] += 1
        ends = (0, 130, -signal.SIGKILL, -signal.SIGINT)
        assert process.wait() in ends, f"{ways}, {done}: {(folder / 'errors.txt').read_text()}"
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
        for way, number in assault(
            target, engine, min(EACH[engine], kills - sum(done.values())), longest, chance
        ).items():
            done[way] += number
        finish(target, engine)
        assert tables(target) == tables(alone)
        assert not list((target / "out").rglob(".*"))
    return done, runs


def test_a_kill_changes_nothing(tmp_path):
    """An audit is killed as soon as it has a result, and then finished."""
    for name in ("alone", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "audit.toml").write_text(TOML.replace("clients = 4", "clients = 2"))
    lg.audit(tmp_path / "alone" / "audit.toml", tmp_path / "alone" / "out", engine="in-process")
    process = start(tmp_path / "killed", "in-process")
    while not (some := results(tmp_path / "killed")) and not wait(process, 0.1):
        pass
    process.kill()
    process.wait()
    assert some
    lg.audit(tmp_path / "killed" / "audit.toml", tmp_path / "killed" / "out", engine="in-process")
    assert tables(tmp_path / "killed") == tables(tmp_path / "alone")
    assert not list((tmp_path / "killed" / "out").rglob(".*"))


@pytest.mark.long
@pytest.mark.parametrize("engine", [name for name in LONG if name != "ray" or find_spec("ray")])
def test_many_kills_change_nothing(tmp_path, engine, capsys):
    done, audits = check(tmp_path, engine, int(os.environ.get("LEAKGAUGE_KILLS", LONG[engine])), seed=1)
    with capsys.disabled():
        print(f"\n{engine}: kills {done} of {audits} audits, all tables as undisturbed")
