"""The seconds of a federated round of ten clients, trained together and one by one.

    python benchmarks/speed/federation.py [--rounds 50 --turns 5 --threads 1] [--json]

The model is a multilayer perceptron with three layers of 256 units. The data is LEAF's synthetic data, with 2,000
samples for each client, one epoch and batches of 256. The two ways take turns, so that a busy machine slows both.
Totals for 1,000 rounds are extrapolated from the seconds of one round, unless ``--rounds 1000`` measures them.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from leakgauge.data import by_group, load
from leakgauge.federation.rounds import run_federation
from leakgauge.models import build

WAYS = {"together": True, "one by one": False}


def compare(rounds: int, turns: int) -> tuple[dict[str, float], float]:
    """Return the seconds of a round for each way, and the largest difference of their global models."""
    clients = by_group(load("leaf_synthetic", clients=10, seed=0))
    model = build("mlp", shape=(100,), classes=5, hidden=(256, 256, 256), seed=0)
    run_federation(model, clients, rounds=1, lr=0.05, batch_size=256, together=True)  # warm up
    seconds = dict.fromkeys(WAYS, 0.0)
    apart = 0.0
    sizes = [rounds // turns + (turn < rounds % turns) for turn in range(turns)]
    for turn, size in enumerate(size for size in sizes if size):
        weights = {}
        for way, together in WAYS.items():
            start = time.perf_counter()
            federation = run_federation(
                model, clients, rounds=size, lr=0.05, batch_size=256, together=together, seed=turn
            )
            seconds[way] += time.perf_counter() - start
            weights[way] = federation.weights
        first, second = weights.values()
        apart = max(apart, *(float((first[name] - second[name]).abs().max()) for name in first))
    return {way: total / rounds for way, total in seconds.items()}, apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="number of rounds for each way")
    parser.add_argument("--turns", type=int, default=5, help="number of turns")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch; several wait for each other on a busy machine"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seconds, apart = compare(options.rounds, options.turns)
    ratio = seconds["one by one"] / seconds["together"]
    if options.json:
        print(
            json.dumps(
                {"settings": vars(options), "seconds_a_round": seconds, "ratio": ratio, "apart": apart}, indent=2
            )
        )
        return
    measured = "measured" if options.rounds == 1000 else "extrapolated"
    print(f"10 clients, {options.rounds} rounds, 3 x 256 MLP, batch 256, threads: {options.threads}\n")
    print(f"{'way':<12}{'s / round':>11}{f'1,000 rounds ({measured})':>30}")
    for way, value in seconds.items():
        print(f"{way:<12}{value:>11.4f}{f'{value * 1000 / 60:.1f} min':>30}")
    print(f"\ntogether is {ratio:.2f} times as fast. The global models differ by at most {apart:.1g}.")


if __name__ == "__main__":
    main()
