"""What it costs to differentiate through a client's local training: time and memory of each way.

    python benchmarks/speed/local_sgd.py [--epochs 10 --batch-size 1 --samples 50 --repeats 3] [--json]

Every measurement is a process of its own; the ways take turns, so that a busy machine is busy for all of
them. Time is the training and, but for ``none``, one backward pass to the samples: the median of the
repeats. Memory is what the process grew by at its peak. ``plain loop`` is the obvious program: a loop over
epochs and batches that keeps autograd's graph.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.federated.training import local_sgd
from leakscope.models import build
from leakscope.observation import LocalTraining
from leakscope.params import parameters_of

LR = 0.004
WAYS = ("none", "graph", "adjoint", "plain loop")


def plain_loop(model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int, size: int) -> dict[str, Tensor]:
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    for _ in range(epochs):
        for start in range(0, len(inputs), size):
            outputs = functional_call(model, weights, (inputs[start : start + size],))
            loss = F.cross_entropy(outputs, labels[start : start + size])
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - LR * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    return weights


def training(
    way: str, model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int, size: int
) -> Callable[[], Tensor]:
    """One attack step (or, for ``none``, one client's training), returning a number to check the ways against."""

    def run() -> Tensor:
        if way == "plain loop":
            weights = plain_loop(model, inputs, labels, epochs, size)
        else:
            batches = list(zip(inputs.split(size), labels.split(size), strict=True)) * epochs
            weights, _ = local_sgd(model, parameters_of(model), batches, LocalTraining(lr=LR), gradients=way)  # type: ignore[arg-type]
        total = torch.stack([value.square().sum() for value in weights.values()]).sum()
        return total if way == "none" else torch.autograd.grad(total, inputs)[0].norm()

    return run


def peak() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(way: str, epochs: int, size: int, samples: int) -> dict[str, float]:
    """In a process of its own: seconds, bytes, and the number to check."""
    torch.set_num_threads(1)
    model = build("dlf_femnist", seed=0)
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(samples, 1, 28, 28, generator=random).requires_grad_()
    labels = torch.randint(62, (samples,), generator=random)
    training(way, model, inputs[: 2 * size].detach().requires_grad_(), labels[: 2 * size], 1, size)()  # warm up
    before, start = peak(), time.perf_counter()
    check = training(way, model, inputs, labels, epochs, size)()
    return {"seconds": time.perf_counter() - start, "bytes": peak() - before, "check": float(check.detach())}


def compare(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Every way ``repeats`` times, in turns."""
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            command = [sys.executable, __file__, "--one", way]
            for name in ("epochs", "batch_size", "samples"):
                command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs[way].append(json.loads(result.stdout))
    for way in WAYS[2:]:
        if abs(runs[way][0]["check"] / runs["graph"][0]["check"] - 1) > 1e-3:
            raise SystemExit(f"{way} and graph do not give the same gradient: {runs[way][0]} and {runs['graph'][0]}")
    return {
        way: {
            "seconds": statistics.median(run["seconds"] for run in found),
            "bytes": max(run["bytes"] for run in found),
        }
        for way, found in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.epochs, options.batch_size, options.samples)))
        return
    results = compare(options)
    if options.json:
        print(json.dumps({"settings": vars(options), "results": results}, indent=2))
        return
    steps = options.epochs * -(-options.samples // options.batch_size)
    print(f"dlf_femnist, {steps} local steps of batch {options.batch_size}, one thread, {options.repeats} repeats\n")
    print(f"{'way':<12}{'seconds':>9}{'x client':>10}{'peak MiB':>10}")
    for way, found in results.items():
        ratio = found["seconds"] / results["none"]["seconds"]
        print(f"{way:<12}{found['seconds']:>9.2f}{ratio:>10.1f}{found['bytes'] / 2**20:>10.0f}")


if __name__ == "__main__":
    main()
