"""Compute the chance levels in ``results.csv`` again, which needs no attack.

python benchmarks/public_data/chance.py
"""

from __future__ import annotations

import csv
from functools import cache
from types import SimpleNamespace

import torch
from cells import SETUPS
from measure import FIELDS, FOLDER, SEED, leak, network

import leakgauge as lg


@cache
def chance_of(name: str, client: int) -> float:
    """Return the chance level of one client."""
    setup = SETUPS[name]
    data = lg.data.load(setup.data)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))
    own = data.share(order[client * setup.samples : (client + 1) * setup.samples])
    public = data.share(order[len(order) - setup.public :])
    plain, truth = lg.fedsgd(network(setup, data, SEED + client), own)
    granted = lg.public_data(plain, public, truth=truth).public
    blank = SimpleNamespace(samples=torch.zeros_like(truth.inputs), labels=None)
    return leak(lg.score(blank, truth, public=granted))[1]


def main() -> None:
    """Write the file again with new chance levels."""
    path = FOLDER / "results.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "chance": f"{chance_of(row['setup'], int(row['client'])):.4g}"})


if __name__ == "__main__":
    main()
