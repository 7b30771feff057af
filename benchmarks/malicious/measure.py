"""Measure the malicious server on fresh clients, and append each result to ``results.csv``. Stored results are skipped.

    python benchmarks/malicious/measure.py table sums --clients 4 [--match mnist]

A client's samples are drawn from the test split, and the server's from the training split. The seed of a client
determines its samples, the network and the server's draws. The attacker's own filter decides which samples it returns.
"""

from __future__ import annotations

import argparse
import csv
import functools
import time
from dataclasses import replace
from pathlib import Path

import torch
from cells import GROUPS, Cell
from torch import nn
from torch.nn import functional

import leakgauge as lg
from leakgauge.attacks.malicious import DeadLayer, TrapServer, plant, trap_read_off, with_added_block
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.params import parameters_of
from leakgauge.core.truth import Truth
from leakgauge.data.dataset import Dataset
from leakgauge.federation.defences import Clipping, GaussianNoise, Quantisation
from leakgauge.federation.received import check_model

RESULTS = Path(__file__).parent / "results.csv"
#: The first seed. Smaller seeds were used to choose settings.
FIRST = 7000
PUBLIC = 1000
LR = 0.01
NOISE, CLIP = GaussianNoise(0.1), Clipping(1.0)
DEFENCES = {
    "none": (),
    "noise": (NOISE,),
    "bits8": (Quantisation(8),),
    "clip": (Clipping(1.0, on="update"),),
    "clip-noise": (CLIP, NOISE),
}
COLUMNS = (
    "cell", "seed", "samples", "above40", "above20", "returned", "wrong", "formula", "expected", "loss", "honest_loss",
    "accuracy", "honest_accuracy", "alarm", "seconds_plant", "seconds_read",
)  # fmt: skip


class Own(nn.Module):
    """A third architecture, with strides, functions in place of layers, and a hidden layer behind the traps."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.Conv2d(16, 32, 3, padding=1)
        self.dense, self.hidden, self.head = nn.Linear(32 * 49, 128), nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the class scores."""
        inner = functional.avg_pool2d(functional.gelu(self.two(functional.gelu(self.one(inputs)))), 2)
        inner = functional.relu(self.dense(torch.flatten(inner, 1)))
        outputs: torch.Tensor = self.head(functional.relu(self.hidden(inner)))
        return outputs


@functools.cache
def population(name: str, split: str) -> Dataset:
    return lg.data.load(name, split=split)


def network(cell: Cell, seed: int) -> nn.Module:
    spec = population(cell.data, "test").spec
    if cell.model == "own":
        torch.manual_seed(seed)
        return Own()
    return lg.models.build(cell.model, shape=spec.shape, classes=spec.classes, seed=seed)


def recipe(cell: Cell) -> LocalTraining:
    total = cell.samples * (cell.others + 1) if cell.others and not cell.dead else cell.samples
    if not cell.steps:
        return LocalTraining(samples=total)
    size = cell.batch or cell.samples
    return LocalTraining(samples=total, lr=LR, epochs=cell.steps * size // cell.samples, batch_size=size)


def message(cell: Cell, model: nn.Module, share: Dataset, seed: int) -> tuple[Observation, Truth]:
    chain = DEFENCES[cell.defence]
    if not cell.steps:
        return lg.fedsgd(model, share, defences=chain, seed=seed)
    training = recipe(cell)
    return lg.fedavg(
        model, share, lr=LR, epochs=training.epochs, batch_size=training.batch_size, defences=chain, seed=seed
    )


def seen_by_server(cell: Cell, model: nn.Module, shares: list[Dataset], seed: int) -> tuple[Observation, Truth]:
    """Return the message of the target, or the secure sum that holds it."""
    observation, truth = message(cell, model, shares[0], seed)
    if not cell.others:
        return observation, truth
    other = network(cell, seed)
    weights = parameters_of(model)
    if cell.dead:
        weights = DeadLayer(other, shares[0].spec).next_weights([], weights)
    with torch.no_grad():
        for name, value in other.named_parameters():
            value.copy_(weights[name])
    rest = [message(cell, other, share, seed + place) for place, share in enumerate(shares[1:], 1)]
    gradients = [observation.gradient, *(one.gradient for one, _ in rest)]
    mean = {name: torch.stack([one[name] for one in gradients]).mean(0) for name in gradients[0]}
    summed = replace(observation, gradient=mean).knowing(samples=cell.samples * len(shares))
    if cell.dead:
        return summed, truth
    joined = {
        name: torch.cat([getattr(truth, name), *(getattr(one, name) for _, one in rest)])
        for name in ("inputs", "targets")
    }
    return summed, replace(truth, **joined, order=())


def scores(samples: torch.Tensor, truth: Truth) -> tuple[int, int, int]:
    """Return how many samples came back above 40 dB and above 20 dB, and how many returned ones are none of them."""
    if not len(samples):
        return 0, 0, 0
    own, found = truth.inputs.double().flatten(1), samples.double().flatten(1)
    errors = torch.cdist(own, found).square() / own.shape[1]
    nearest = errors.amin(1)
    return int((nearest < 1e-4).sum()), int((nearest < 1e-2).sum()), int((errors.amin(0) > 1e-2).sum())


def behaviour(model: nn.Module, share: Dataset) -> tuple[float, float]:
    """Return the loss and the accuracy of a model on a client's samples."""
    with torch.no_grad():
        outputs = model(share.spec.normalise(share.inputs.float()))
    right = (outputs.argmax(1) == share.targets).double().mean()
    return float(functional.cross_entropy(outputs, share.targets)), float(right)


def run(cell: Cell, seed: int) -> None:
    test, train = population(cell.data, "test"), population(cell.data, "train")
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))
    shares = [test.share(order[k * cell.samples : (k + 1) * cell.samples]) for k in range(cell.others + 1)]
    draws = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:PUBLIC]
    public = train.inputs[draws].float() if cell.public else None
    honest = network(cell, seed)
    model = (
        with_added_block(honest, test.spec.shape, factor=1 / 64 if cell.steps else 1) if cell.way == "block" else honest
    )
    kind = "half_negative" if cell.way == "half" else "thresholds"
    began = time.process_time()
    planted = plant(model, test.spec, recipe(cell), kind=kind, public=public, seed=seed)
    prepared = time.process_time()
    before = behaviour(honest, shares[0])
    model = planted.load_into(model)
    after = behaviour(model, shares[0])
    observation, truth = seen_by_server(cell, model, shares, seed)
    rule = "added_block" if cell.way == "block" else TrapServer(model, test.spec, kind=kind).rule
    reads = time.process_time()
    result = trap_read_off()(replace(observation, steered=rule), progress=False)
    ended = time.process_time()
    above40, above20, wrong = scores(result.samples, truth)
    alarm = check_model(model.eval(), test.spec)
    row = {
        "cell": cell.name, "seed": seed, "samples": len(truth.inputs), "above40": above40, "above20": above20,
        "returned": len(result.samples), "wrong": wrong, "formula": f"{planted.formula:.4f}",
        "expected": f"{planted.expected:.4f}", "loss": f"{after[0]:.4g}", "honest_loss": f"{before[0]:.4g}",
        "accuracy": f"{after[1]:.3f}", "honest_accuracy": f"{before[1]:.3f}",
        "alarm": " ".join(sorted({one.name for one in alarm.signs})), "seconds_plant": f"{prepared - began:.2f}",
        "seconds_read": f"{ended - reads:.2f}",
    }  # fmt: skip
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def stored() -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as lines:
        return list(csv.DictReader(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--match", default="")
    chosen = parser.parse_args()
    done = {(row["cell"], int(row["seed"])) for row in stored()}
    for seed in range(FIRST, FIRST + chosen.clients):
        for group in chosen.groups:
            for cell in GROUPS[group]:
                if chosen.match in cell.name and (cell.name, seed) not in done:
                    run(cell, seed)


if __name__ == "__main__":
    main()
