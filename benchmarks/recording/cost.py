"""The cost of recording a round of a ResNet18, and of keeping its samples.

    python benchmarks/recording/cost.py [ROUNDS [IMAGES]]

One client with IMAGES pictures of 32 x 32 pixels (default 512) trains a ResNet18 for one epoch in batches of 32. Plain
rounds, recorded rounds, and rounds that are recorded with a keeper alternate, ROUNDS of each (default 3). The cost is
the CPU time that a round takes beyond its training, which is measured inside the round, as a share of the training. All
times are CPU seconds, so other work on the machine does not count. The last figure is the growth of the memory while
the messages of 100 clients are recorded.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

import leakgauge as lg

DATA = lg.DataSpec((3, 32, 32), classes=10, mean=(0.5,), std=(0.25,))


def train(net, batches):
    """Train for one epoch, and return the CPU seconds of the steps, without those of the loader."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    seconds = 0.0
    for inputs, targets in batches:
        began = time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
        seconds += time.process_time() - began
    return seconds


def round_of(kind, number, folder, net, batches):
    """Return the CPU seconds of a round of one kind, and of its training."""
    recorder = lg.record(folder, model=net, data=DATA, run="cost")
    watch = recorder.keeper().watch if kind == "kept" else list
    began = time.process_time()
    if kind == "plain":
        trained = train(net, batches)
    else:
        with recorder.client(kind, round=number, model=net):
            trained = train(net, watch(batches))
    return time.process_time() - began, trained


def memory():
    """Return the largest memory of this process so far in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    """Print the figures as JSON."""
    torch.set_num_threads(1)
    words = sys.argv[1:]
    rounds, images = int(words[0]) if words else 3, int(words[1]) if len(words) > 1 else 512
    net = lg.models.build("resnet18", shape=(3, 32, 32), classes=10, seed=0)
    draws = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(images, 3, 32, 32, generator=draws), torch.arange(images) % 10
    batches = list(zip(DATA.normalise(inputs).split(32), targets.split(32), strict=True))
    train(net, batches[:1])  # warms up
    times = {"plain": [], "recorded": [], "kept": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for kind, found in times.items():
                found.append(round_of(kind, number + 1, folder, net, batches))
        before = memory()
        recorder = lg.record(Path(folder) / "hundred", model=net, data=DATA)
        state = net.state_dict()
        for client in range(100):
            path = recorder.keep(client, 1, state, {name: value + 0 for name, value in state.items()}, lr=0.01)
            path.unlink()
        growth = memory() - before
    shares = {kind: [whole / trained - 1 for whole, trained in found] for kind, found in times.items()}
    figures = {kind: {"share": median(found), "range": [min(found), max(found)]} for kind, found in shares.items()}
    seconds = {kind: median(trained for _, trained in found) for kind, found in times.items()}
    print(json.dumps({"cost": figures, "training": seconds, "MiB of 100 clients": growth}, indent=1))


if __name__ == "__main__":
    main()
