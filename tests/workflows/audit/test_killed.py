"""An audit that is killed and started again ends as one that was left alone, and does nothing twice."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import leakgauge as lg
from leakgauge.runtime.cache import FILE

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
KILLS = int(os.environ.get("LEAKGAUGE_KILLS", "2"))


def start(folder, *words):
    call = "from leakgauge.cli import main; main()"
    command = [sys.executable, "-c", call, "audit", "audit.toml", "--output", "out", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def keys(folder):
    """What is finished, looked up beside the process that is at work."""
    path = folder / "out" / "cache" / FILE
    if not path.exists():
        return set()
    with closing(sqlite3.connect(path)) as connection:
        try:
            return {key for (key,) in connection.execute("select key from entries")}
        except sqlite3.OperationalError:  # no table yet
            return set()


def figures(folder):
    found = json.loads((folder / "out" / "audit.json").read_text())
    assert found["complete"]
    return found["findings"]


def test_kill_minus_nine_at_any_moment(tmp_path):
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "audit.toml").write_text(TOML)
    chance = random.Random(0)
    before = set()
    for _ in range(KILLS):
        process = start(tmp_path / "killed")
        while process.poll() is None and keys(tmp_path / "killed") == before:
            time.sleep(0.05)  # until it has got on
        time.sleep(chance.uniform(0, 0.3))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        after = keys(tmp_path / "killed")
        assert before <= after  # nothing that was finished is lost
        before = after
    process = start(tmp_path / "killed", "--jobs", "1")
    _, said = process.communicate()
    assert process.returncode == 0, said
    lg.audit(tmp_path / "killed" / "audit.toml", tmp_path / "alone" / "out")
    assert before <= keys(tmp_path / "killed")
    killed, alone = figures(tmp_path / "killed"), figures(tmp_path / "alone")
    assert killed == alone
    left = [path.name for path in (tmp_path / "killed" / "out").rglob(".*")]
    assert left == []
