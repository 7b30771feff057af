"""Real Flower runs of the example app, each with its own SuperLink on loopback."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

APP = Path(__file__).parents[3] / "examples" / "flower"
BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Federation:
    """A running SuperLink that runs apps."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        home = folder / "flower-home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_ADDRESS": "local",  # not a cluster that another program has announced
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *words, **settings):
        """Run the example app, wait until it is done, and return its log."""
        config = " ".join(f"{key.replace('_', '-')}={_toml(value)}" for key, value in settings.items())
        done = subprocess.run(
            [BIN / "flwr", "run", APP, "here", "--stream", "--run-config", config, *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        logged = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        assert done.returncode == 0, logged
        return logged


def _toml(value):
    return f"'{value}'" if isinstance(value, (str, Path)) else value


@contextmanager
def process(federation, name, *words):
    """Run a server process, and end it with all its children afterwards."""
    with (federation.folder / f"{name}.log").open("w") as log:
        running = subprocess.Popen(
            [BIN / words[0], *words[1:]],
            env=federation.environment,
            cwd=federation.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield running
        finally:
            for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(running.pid, kind)
                    running.wait(10)
                except (ProcessLookupError, PermissionError):
                    break
                except subprocess.TimeoutExpired:
                    continue


@contextmanager
def started(folder, *words):
    """Start a SuperLink and wait until it answers."""
    federation = Federation(folder)
    here = ("--host", "127.0.0.1", "--port", str(federation.port))
    quiet = ("--insecure", "--disable-runtime-dependency-installation")
    with process(federation, "superlink", "flower-superlink", *quiet, *here, *words) as running:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{federation.port}/health", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                assert running.poll() is None, (folder / "superlink.log").read_text()
                time.sleep(0.2)
        yield federation


def simulation(folder):
    """Start a SuperLink that simulates its nodes."""
    return started(folder, "--simulation")


@contextmanager
def deployment(folder, nodes):
    """Start a SuperLink and several SuperNodes, each in its own process."""
    with ExitStack() as stack:
        federation = stack.enter_context(started(folder))
        for node in range(nodes):
            words = ("--insecure", "--superlink", f"127.0.0.1:{federation.port}", "--port", str(free_port()))
            config = ("--node-config", f"partition-id={node} num-partitions={nodes}")
            stack.enter_context(process(federation, f"node-{node}", "flower-supernode", *words, *config))
        yield federation
