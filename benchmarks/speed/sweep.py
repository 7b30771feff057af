"""The speed of the engines: an audit of eight clients in this process, in processes and on a local Ray cluster.

    python benchmarks/speed/sweep.py [--clients 8 --steps 300 --jobs 2 --turns 3 --engines processes ray]

The model is a LeNet on 28 x 28 digits, with 4 samples for each client and two attacks. The engines take turns, each
in a new folder. Every other turn is in the opposite order, so that a busy machine slows all of them. The output is
JSON with medians, and with the ratios of each turn. ``start`` is the time until all workers have a task. ``seconds``
is the time of the whole audit at the pace from then on. ``same`` is whether all tables are identical, to the last
bit.
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
from leakgauge.workflows.result import Running

ENGINES = ("in-process", "processes", "ray")


class Stopwatch(Watch):
    """A watch that records when all workers had a task for the first time, and how many tasks ended after that.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._workers, self._running = workers, 0
        self.began_all: float | None = None
        self.after = 0

    def began(self, task: Task) -> None:
        """Count a running task."""
        self._running += 1
        if self._running == self._workers and self.began_all is None:
            self.began_all = time.perf_counter()

    def done(self, task: Task) -> None:
        """Count a finished task."""
        self._running -= 1
        self.after += self.began_all is not None


def measure(plan: Any, engine: str, jobs: int) -> tuple[dict[str, float], list[Any]]:
    """Return the seconds of one audit, and its table."""
    alone = engine == "in-process"
    watch = Stopwatch(1 if alone else jobs)
    running = Running(engine, jobs=None if alone else jobs, watch=watch)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        audit = run_audit(plan, Path(folder), running)
        end = time.perf_counter()
    if not audit.complete or watch.began_all is None:
        raise SystemExit(f"{engine}: {audit.failed}")
    tasks = [result.document["seconds"] for result in audit.results]
    figures = {
        "start": watch.began_all - start,
        "seconds": (end - watch.began_all) * len(tasks) / watch.after,
        "seconds_a_task": statistics.mean(tasks),
    }
    table = [(str(result.work), result.document["scores"], result.document["loss"]) for result in audit.results]
    return figures, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300, help="steps of each attack")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, help="number of turns")
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
        engine: {name: statistics.median(run[name] for run in turns) for name in turns[0]}
        for engine, turns in runs.items()
    }

    def ratio(one: str, other: str) -> dict[str, Any] | None:
        if not {one, other} <= set(runs):
            return None
        turns = [first["seconds"] / second["seconds"] for first, second in zip(runs[one], runs[other], strict=True)]
        return {"median": statistics.median(turns), "turns": turns}

    summary = {
        "settings": vars(options),
        "tasks": len(plan.work),
        "same": all(table == tables[0] for table in tables),
        "processes_over_in_process": ratio("in-process", "processes"),
        "ray_beside_processes": ratio("ray", "processes"),
        **medians,
    }
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
