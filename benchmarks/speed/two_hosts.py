"""An audit on a Ray cluster of two hosts, of which one is killed. Both hosts are on this machine.

    python benchmarks/speed/two_hosts.py [--clients 6 --steps 300 --lose-after 4]

The hosts are network namespaces of Linux with a virtual cable between them. Each has a Ray node with one core, set up
as in docs/scaling.md. This needs root and ``ip``. ``leakgauge audit`` runs on the first host. After some tasks, all
processes of the second host are killed while it runs a task. The output is JSON with the number of tasks that each
host ran at a time, the tasks that were restarted and why, and whether the table is identical to that of the same
audit in one process, to the last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

BIN = Path(sys.executable).parent
HOSTS = ("leakgauge-1", "leakgauge-2")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 6379
#: Ray's workers get the priority of other programs, and Ray sends no usage statistics.
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
AUDIT = """
[model]
name = "lenet"
options = {{ classes = 10 }}
[data]
name = "digits"
[training]
samples = 4
lr = 0.01
epochs = 2
batch_size = 2
[audit]
clients = {clients}
attacks = [{{ name = "surrogate", steps = {steps} }}, {{ name = "inverting_gradients", steps = {steps} }}]
"""


def ip(*words: str) -> str:
    """Return the output of the command ``ip``."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ip {' '.join(words)}: {done.stderr.strip()} (namespaces need root, and Linux)")
    return done.stdout


def on(host: str, *words: str | Path) -> list[str | Path]:
    """Return the command that runs other words on a host."""
    return ["ip", "netns", "exec", host, *words]


def lose(host: str) -> int:
    """Kill all processes of a host, and return their number."""
    processes = ip("netns", "pids", host).split()
    subprocess.run(["kill", "-9", *processes], check=False, stderr=subprocess.DEVNULL)
    return len(processes)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Set up two hosts with a cable between them."""
    with contextlib.ExitStack() as ending:
        for host in HOSTS:
            ip("netns", "add", host)
            ending.callback(ip, "netns", "delete", host)
            ending.callback(lose, host)
        ip("link", "add", "cable-1", "netns", HOSTS[0], "type", "veth", "peer", "name", "cable-2", "netns", HOSTS[1])
        for number, (host, address) in enumerate(zip(HOSTS, ADDRESSES, strict=True), start=1):
            ip("-n", host, "address", "add", f"{address}/24", "dev", f"cable-{number}")
            for device in (f"cable-{number}", "lo"):
                ip("-n", host, "link", "set", device, "up")
        yield


def start_ray(folder: Path) -> None:
    """Start a Ray node with one core on each host."""
    quiet = ("--num-cpus", "1", "--object-store-memory", str(200 * 2**20))
    head = ("--head", "--port", str(PORT), "--include-dashboard", "false", "--temp-dir", str(folder))
    ways: Sequence[tuple[str, ...]] = (head, ("--address", f"{ADDRESSES[0]}:{PORT}"))
    for host, address, words in zip(HOSTS, ADDRESSES, ways, strict=True):
        command = on(host, BIN / "ray", "start", "--node-ip-address", address, *words, *quiet)
        subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of an audit without their times."""
    with (folder / "results.csv").open() as file:
        rows = [{name: value for name, value in row.items() if "seconds" not in name} for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: json.dumps(row))


def busy(host: str) -> int:
    """Return the number of tasks that a host runs now. Ray names a worker after its task."""
    titles = []
    for pid in ip("netns", "pids", host).split():
        with contextlib.suppress(OSError):  # the process has ended
            titles.append(Path(f"/proc/{pid}/cmdline").read_text())
    return sum(title.startswith("ray::") and ", client " in title for title in titles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300, help="steps of each attack")
    parser.add_argument(
        "--lose-after", type=int, default=4, help="tasks that are done before the second host is killed"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="two-", dir="/tmp") as name, hosts():  # names of sockets must be short
        folder = Path(name)
        (folder / "audit.toml").write_text(AUDIT.format(clients=options.clients, steps=options.steps))
        audit = (BIN / "leakgauge", "audit", folder / "audit.toml", "--output")
        start_ray(folder / "ray")
        began, lines, at_work, lost = time.perf_counter(), [], [0, 0], 0
        words = on(HOSTS[0], *audit, folder / "two", "--engine", f"ray:{ADDRESSES[0]}:{PORT}")
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(words, env=ENVIRONMENT, text=True, **both) as run:
            for line in run.stdout or ():
                lines.append(line.strip())
                done = sum("done:" in text for text in lines)
                if not lost:
                    at_work = [max(pair) for pair in zip(at_work, map(busy, HOSTS), strict=True)]
                    lost = lose(HOSTS[1]) if done >= options.lose_after and busy(HOSTS[1]) else 0
        if run.returncode:
            raise SystemExit("\n".join(lines))
        seconds = time.perf_counter() - began
        alone = subprocess.run([*audit, folder / "one", "--engine", "in-process"], env=ENVIRONMENT, check=False)
        summary = {
            "settings": vars(options),
            "tasks": sum("done:" in text for text in lines),
            "tasks_at_a_time_on_each_host": at_work,
            "processes_killed_with_the_second": lost,
            "restarted": [text for text in lines if "restarted:" in text],
            "seconds": seconds,
            "same": alone.returncode == 0 and table(folder / "one") == table(folder / "two"),
        }
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
