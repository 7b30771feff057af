"""What engines save: an audit of eight clients in this process, in processes and on a local Ray cluster.

    python benchmarks/speed/sweep.py [--clients 8 --steps 300 --jobs 2 --turns 3 --engines processes ray]

A LeNet on 28 x 28 digits, 4 samples a client, two attacks. The engines take turns, each in a fresh folder and every
other turn the other way round, so that a busy machine is busy for all; medians are printed as JSON, and the ratios of
each turn. ``start`` is until all workers are at work, ``seconds`` what the whole takes at the pace from then on.
``same`` says whether all tables are the same, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from leakgauge.runtime import Task, Watch, memory
from leakgauge.workflows.audit import read_audit, run_audit

ENGINES = ("in-process", "processes", "ray")


class Stopwatch(Watch):
    """Notes when so many tasks ran at a time for the first time, and how many ended after that."""

    def __init__(self, workers: int) -> None:
        self._workers, self._running = workers, 0
        self.began_all: float | None = None
        self.after = 0

    def began(self, task: Task) -> None:
        """One more."""
        self._running += 1
        if self._running == self._workers and self.began_all is None:
            self.began_all = time.perf_counter()

    def done(self, task: Task) -> None:
        """One less."""
        self._running -= 1
        self.after += self.began_all is not None


def measure(plan: Any, engine: str, jobs: int) -> tuple[dict[str, float], list[Any]]:
    """The seconds of one audit, and its table."""
    watch = Stopwatch(1 if engine == "in-process" else jobs)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        found = run_audit(plan, Path(folder), engine=engine, jobs=None if engine == "in-process" else jobs, watch=watch)
        end = time.perf_counter()
    if not found.complete or watch.began_all is None:
        raise SystemExit(f"{engine}: {found.failed}")
    tasks = [one.document["seconds"] for one in found.results]
    figures = {
        "start": watch.began_all - start,
        "seconds": (end - watch.began_all) * len(tasks) / watch.after,
        "seconds_a_task": statistics.mean(tasks),
    }
    return figures, [(str(one.work), one.document["scores"], one.document["loss"]) for one in found.results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300, help="steps of each attack")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, help="how often the engines take turns")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory.reuse()  # as the command line does
    attacks = [{"name": name, "steps": options.steps} for name in ("surrogate", "inverting_gradients")]
    plan = read_audit(
        {
            "model": {"name": "lenet"},
            "data": {"name": "mnist5k"},
            "training": {"samples": 4, "lr": 0.01, "epochs": 2, "batch_size": 2},
            "audit": {"attacks": attacks, "clients": options.clients},
        },
        "the benchmark",
    )
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in options.engines}
    tables = []
    for turn in range(options.turns):
        for engine in options.engines[:: 1 if turn % 2 == 0 else -1]:
            figures, table = measure(plan, engine, options.jobs)
            runs[engine].append(figures)
            tables.append(table)
    medians = {
        engine: {name: statistics.median(run[name] for run in found) for name in found[0]}
        for engine, found in runs.items()
    }

    def ratio(one: str, other: str) -> dict[str, Any] | None:
        if not {one, other} <= set(runs):
            return None
        turns = [first["seconds"] / second["seconds"] for first, second in zip(runs[one], runs[other], strict=True)]
        return {"median": statistics.median(turns), "turns": turns}

    found = {
        "settings": vars(options),
        "tasks": len(plan.work),
        "same": all(table == tables[0] for table in tables),
        "processes_over_in_process": ratio("in-process", "processes"),
        "ray_beside_processes": ratio("ray", "processes"),
        **medians,
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
