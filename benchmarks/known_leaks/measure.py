"""Run the attacks of a default audit and the known attack on the same clients, and append each to ``results.csv``.

    python benchmarks/known_leaks/measure.py [--match ViT] [--clients 4]

Stored results are skipped. All attacks run with all of their steps, without a budget, in one thread.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

import torch
from rows import ROWS, Row

from leakgauge.attacks import registry
from leakgauge.attacks.base import Attack
from leakgauge.core.observation import Observation
from leakgauge.core.truth import Truth
from leakgauge.evaluation import score
from leakgauge.workflows.audit import read_audit

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
#: The seed of the clients, which no setting was chosen on.
SEED = 7100
COLUMNS = ("row", "attack", "client", "psnr", "chance", "recovered", "seconds", "outcome")


def stored() -> list[dict[str, str]]:
    """Return the results so far."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def measured(attack: Attack, observation: Observation, truth: Truth, seed: int) -> dict[str, object]:
    """Run an attack on one client, and return its scores."""
    began = time.process_time()
    result = attack(observation, seed=seed, progress=False)
    seconds = time.process_time() - began
    scored = score(result, truth)
    psnr, recovered = scored["psnr"], scored["recovered"]
    figures = (psnr.value, psnr.chance, recovered.value, seconds)
    words = ("psnr", "chance", "recovered", "seconds")
    return {name: f"{value:.4g}" for name, value in zip(words, figures, strict=True)} | {"outcome": str(result.outcome)}


def run(row: Row, clients: int) -> None:
    """Run all attacks of one row that are not stored yet."""
    plan = read_audit(row.document(SEED), row.name)
    chosen = [name for name in plan.attacks if name in row.only or not row.only]
    portfolio = {name: registry.build(name, **plan.attacks[name].options) for name in chosen}
    name, factory = row.known
    attacks = portfolio | {f"known: {name}": factory()}
    for client in range(clients):
        observation, truth = plan.scenario.observe(client)
        for attack, built in attacks.items():
            done = {(one["row"], one["attack"], one["client"]) for one in stored()}
            if (row.name, attack, str(client)) in done:
                continue
            figures = measured(built, observation, truth, client)
            entry = {"row": row.name, "attack": attack, "client": client, **figures}
            new = not RESULTS.exists()
            with RESULTS.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow(entry)
            print(*entry.values(), sep=" | ", flush=True)


def main() -> None:
    """Read the command line, and run the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--match", default="")
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    for row in ROWS:
        if options.match in row.name:
            run(row, options.clients)


if __name__ == "__main__":
    main()
