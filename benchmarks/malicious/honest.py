"""Measure the check of received models on honest training runs, and append each result to ``honest.csv``.

    python benchmarks/malicious/honest.py --seeds 0 1          # the runs on which limits were chosen
    python benchmarks/malicious/honest.py --seeds 10 11 12 13  # the runs that count

Stored results are skipped. A run trains one network of a family and is checked at several stages. The seed determines
the network, the order of the samples, the optimiser and its rate.
"""

from __future__ import annotations

import argparse
import csv
import functools
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.data.dataset import Dataset
from leakgauge.federation.received import check_model

RESULTS = Path(__file__).parent / "honest.csv"
STAGES = (0, 10, 50, 200, 600)
#: A later stage of the families whose steps are cheap.
LONGER, LONG = 4000, ("mlp", "lenet-tanh", "mlp-table")
BATCH = 32
FIGURES = ("twins", "transmit", "rare", "quiet", "dead", "passes")
COLUMNS = ("family", "seed", "stage", "probes", *FIGURES, "refused", "signs", "accuracy", "seconds")


class Series(nn.Module):
    """An LSTM that reads the rows of a picture."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body, self.hidden, self.head = nn.LSTM(size, 48, batch_first=True), nn.Linear(48, 32), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the class scores."""
        last = self.body(inputs.squeeze(1))[0][:, -1]
        return self.head(torch.relu(self.hidden(last)))


def convolutional(normalisation: Callable[[int], nn.Module], pool: Callable[[int], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), normalisation(after), nn.ReLU(), pool(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10))


FAMILIES: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "mlp": ("mnist", lambda: lg.models.build("mlp", shape=(1, 28, 28), classes=10, hidden=(128, 64))),
    "lenet-sigmoid": ("mnist", lambda: lg.models.build("lenet", shape=(1, 28, 28), classes=10)),
    "lenet-tanh": (
        "mnist",
        lambda: lg.models.build("lenet", shape=(1, 28, 28), classes=10, activation="tanh", initialisation="default"),
    ),
    "lenet-relu": (
        "cifar10",
        lambda: lg.models.build("lenet", shape=(3, 32, 32), activation="relu", initialisation="default"),
    ),
    "cnn": ("mnist", lambda: lg.models.build("dlf_femnist", shape=(1, 28, 28), classes=10, channels=(16, 32))),
    "cnn-batch-norm": ("mnist", lambda: convolutional(nn.BatchNorm2d, nn.MaxPool2d)),
    "cnn-group-norm": ("mnist", lambda: convolutional(lambda width: nn.GroupNorm(4, width), nn.AvgPool2d)),
    "cnn-max-pool": ("mnist", lambda: convolutional(lambda width: nn.Identity(), nn.MaxPool2d)),
    "resnet20": ("digits", lambda: lg.models.build("resnet20", shape=(1, 8, 8), classes=10)),
    "vit": ("digits", lambda: lg.models.build("vit", shape=(1, 8, 8), classes=10, patch=2, width=32)),
    "lstm": ("digits", lambda: Series(8)),
    "mlp-table": ("breast_cancer", lambda: lg.models.build("mlp", shape=(30,), classes=2, hidden=(64, 32))),
}


@functools.cache
def population(name: str) -> Dataset:
    return lg.data.load(name, split="train") if name in ("mnist", "cifar10") else lg.data.load(name)


def optimiser(model: nn.Module, seed: int) -> torch.optim.Optimizer:
    """Return the optimiser of a run. The seed chooses among three."""
    if seed % 3 == 0:
        return torch.optim.SGD(model.parameters(), 0.05)
    if seed % 3 == 1:
        return torch.optim.Adam(model.parameters(), 0.002)
    return torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)


def stored() -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as lines:
        return list(csv.DictReader(lines))


def run(family: str, seed: int) -> None:
    name, build = FAMILIES[family]
    whole = population(name)
    torch.manual_seed(seed)
    model = build()
    draw = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(len(whole), generator=draw)
    train, held = order[: max(200, len(order) - 300)], order[-300:]
    steps = optimiser(model, seed)
    done = 0
    for stage in (*STAGES, *([LONGER] if family in LONG else [])):
        model.train()
        while done < stage:
            rows = train[torch.randint(len(train), (BATCH,), generator=draw)]
            steps.zero_grad()
            outputs = model(whole.spec.normalise(whole.inputs[rows].float()))
            nn.functional.cross_entropy(outputs, whole.targets[rows]).backward()
            steps.step()
            done += 1
        model.eval()
        with torch.no_grad():
            right = model(whole.spec.normalise(whole.inputs[held].float())).argmax(1) == whole.targets[held]
        for probes, samples in (("drawn", None), ("own", whole.inputs[held[:64]].float())):
            began = time.process_time()
            result = check_model(model, whole.spec, samples=samples)
            seconds = time.process_time() - began
            row = {name: f"{result.figures.get(name, 0.0):.5g}" for name in FIGURES}
            row |= {"family": family, "seed": str(seed), "stage": str(stage), "probes": probes}
            row |= {"refused": str(int(result.refused)), "signs": " ".join(one.name for one in result.signs)}
            row |= {"accuracy": f"{float(right.double().mean()):.3f}", "seconds": f"{seconds:.3f}"}
            fresh = not RESULTS.exists()
            with RESULTS.open("a", newline="") as lines:
                writer = csv.DictWriter(lines, COLUMNS)
                if fresh:
                    writer.writeheader()
                writer.writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--match", default="")
    chosen = parser.parse_args()
    finished = {(row["family"], int(row["seed"])) for row in stored() if int(row["stage"]) == STAGES[-1]}
    for seed in chosen.seeds:
        for family in FAMILIES:
            if chosen.match in family and (family, seed) not in finished:
                run(family, seed)


if __name__ == "__main__":
    main()
