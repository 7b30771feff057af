"""Measure the span attacks on fresh clients, and append each result to ``results.csv``. Stored results are skipped.

    python benchmarks/spans/measure.py pictures tables --batches 3 [--match relu] [--seconds 600] [--table]

A client's samples are drawn from the test split. Networks are trained on the training split. The seed of a client
determines its samples, the network and the attack.
"""

from __future__ import annotations

import argparse
import csv
import functools
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from cells import GROUPS, Cell
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from leakgauge import attacks, data
from leakgauge.attacks.base import Reconstruction
from leakgauge.core.observation import Observation
from leakgauge.data.dataset import Dataset
from leakgauge.federation.client import fedavg, fedsgd

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
#: The first seed. Smaller seeds may have been used to choose settings.
FIRST = 6000
#: The mean squared error of a picture with a PSNR of 60 dB, and that of one with 40 dB.
EXACT, NEAR = 1e-6, 1e-4
#: The largest error of an exact row in any column, in standard deviations, and that of a nearly exact one.
ROW_EXACT, ROW_NEAR = 0.01, 0.1
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
COLUMNS = ("cell", "attack", "seed", "samples", "returned", "exact", "labels", "wrong", "claimed", "seconds", "outcome")


class Counts(NamedTuple):
    """The counts of returned samples.

    Args:
        exact: The number of the client's samples that are returned exactly.
        labels: The number of these that are returned with the right label.
        wrong: The number of returned samples that are near no sample of the client, or that have a wrong label.
    """

    exact: int
    labels: int
    wrong: int


@functools.cache
def population(name: str, split: str) -> Dataset:
    """Return one split of a dataset. A dataset without splits is cut in two."""
    if name == "insurance":
        whole = data.load("insurance")
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
        rows = order[:800] if split == "train" else order[800:]
        part = whole.share(rows)
        scale = whole.targets.std()  # a network learns charges in units of their spread
        return Dataset(part.inputs, (part.targets - whole.targets.mean()) / scale, whole.spec, "insurance")
    if name == "small":
        whole = data.load("digits")
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
        return whole.share(order[:1000] if split == "train" else order[1000:])
    return data.load({"digits": "mnist", "cifar": "cifar10"}.get(name, name), split=split)


def network(cell: Cell, seed: int) -> nn.Sequential:
    """Return the network of a client, which was trained for the cell's number of steps."""
    train = population(cell.data, "train")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = [train.inputs[0].numel(), *cell.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), ACTIVATIONS[cell.activation]()]
        model = nn.Sequential(*layers, nn.Linear(sizes[-1], train.spec.classes or 1))
    model.load_state_dict(_weights(model, cell.data, cell.trained, seed if cell.trained < 1000 else FIRST, str(model)))
    return model


_CACHE: dict[tuple[str, int, int, str], dict[str, Tensor]] = {}


def _weights(model: nn.Module, name: str, steps: int, seed: int, architecture: str) -> dict[str, Tensor]:
    """Return the weights after some steps of SGD with batches of 64 and a learning rate of 0.1."""
    if not steps:
        return model.state_dict()
    key = (name, steps, seed, architecture)
    if key not in _CACHE:
        train = population(name, "train")
        draw = torch.Generator().manual_seed(seed)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            rows = torch.randint(len(train), (64,), generator=draw)
            outputs = model(train.spec.normalise(train.inputs[rows]))
            optimiser.zero_grad()
            nn.functional.cross_entropy(outputs, train.targets[rows]).backward()
            optimiser.step()
        _CACHE[key] = {name: value.clone() for name, value in model.state_dict().items()}
    return _CACHE[key]


def client(cell: Cell, seed: int) -> tuple[Observation, Dataset]:
    """Return the message of a client, and its samples."""
    people = population(cell.data, "test")
    rows = torch.randperm(len(people), generator=torch.Generator().manual_seed(seed))[: cell.samples]
    if cell.data == "small" and seed % 2:
        rows[-1] = rows[0]  # a copy
    share, model = people.share(rows), network(cell, seed)
    granted = ["labels"] if cell.granted else []
    if not cell.epochs:
        return fedsgd(model, share, granted=granted)[0], share
    training = {"lr": cell.lr, "momentum": cell.momentum, "weight_decay": cell.weight_decay}
    sizes = {"epochs": cell.epochs, "batch_size": min(8, cell.samples)}
    return fedavg(model, share, seed=seed, granted=granted, **training, **sizes)[0], share


def count(result: Reconstruction, share: Dataset) -> Counts:
    """Compare returned samples with the client's samples."""
    found, true = result.samples.detach().double().flatten(1), share.inputs.double().flatten(1)
    if not len(found):
        return Counts(0, 0, 0)
    exact, near = EXACT, NEAR
    if share.spec.bounded:
        error = torch.cdist(found, true).square() / true.shape[1]
    else:
        exact, near = ROW_EXACT, ROW_NEAR
        error = torch.cdist(share.spec.normalise(found), share.spec.normalise(true), p=torch.inf)
    left, right = (torch.as_tensor(part) for part in linear_sum_assignment((error >= exact).numpy()))
    same = error[left, right] < exact
    labels = torch.zeros(int(same.sum()), dtype=torch.bool)
    if result.labels is not None:
        gap = (result.labels[left[same]].double() - share.targets[right[same]].double()).abs()
        labels = gap < (0.5 if share.spec.classes else 1e-2)
    wrong = int((error.amin(1) >= near).sum()) + (int((~labels).sum()) if result.labels is not None else 0)
    return Counts(int(same.sum()), int(labels.sum()), wrong)


def claimed(outcome: str) -> int:
    """Return the number of samples that an outcome counts as proven."""
    inexact = re.search(r"(\d+) of them proven", outcome)
    plain = re.search(r"(\d+) of \d+ samples solved for and proven", outcome)
    match = inexact or plain
    return int(match[1]) if match else 0


def stored() -> list[dict[str, str]]:
    """Return all stored results."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def append(row: dict[str, object]) -> None:
    """Append one result to the file."""
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def measure(cell: Cell, seed: int, done: dict[tuple[str, str, int], int]) -> None:
    """Run the attacks of a cell on one client, and store the results that are not stored yet."""
    made: tuple[Observation, Dataset] | None = None
    for name in cell.attacks:
        key = (cell.name, name, seed)
        if key not in done:
            made = made or client(cell, seed)
            observation, share = made
            start = time.process_time()
            try:
                result: Reconstruction | None = getattr(attacks, name)()(observation, seed=seed)
            except ValueError as refusal:
                result, outcome = None, f"refused: {refusal}"
            seconds = time.process_time() - start
            counts = count(result, share) if result is not None else Counts(0, 0, 0)
            outcome = str(result.outcome) if result is not None else outcome
            returned = len(result.samples) if result is not None else 0
            row = (*key, cell.samples, returned, *counts, claimed(outcome), f"{seconds:.2f}", outcome)
            append(dict(zip(COLUMNS, row, strict=True)))
            done[key] = counts.exact
            print(*row[:-1], flush=True)
        if done[key] == cell.samples:
            break


def main() -> None:
    """Measure the chosen cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", choices=list(GROUPS))
    parser.add_argument("--batches", type=int, default=3, help="clients of each cell")
    parser.add_argument("--match", default="", help="a regular expression that the names of the cells match")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no client after so many CPU seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = {(row["cell"], row["attack"], int(row["seed"])): int(row["exact"]) for row in stored()}
    cells = [cell for group in options.groups for cell in GROUPS[group] if re.search(options.match, cell.name)]
    for seed in range(FIRST, FIRST + options.batches):
        for cell in cells:
            if time.process_time() > options.seconds:
                return
            measure(cell, seed, done)


if __name__ == "__main__":
    main()
