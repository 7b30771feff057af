"""The cost of recording a round of Flower.

    python benchmarks/speed/flower.py [ROUNDS [IMAGES]]

It runs Flower's own FedAvg with ten clients of its PyTorch quickstart, one after the other in this process. Each
client has the quickstart's CNN, a tenth of CIFAR-10's 50,000 images, of which 80% are for training, batches of 32 and
one epoch. A real round also starts processes and moves messages. It is longer, and the share of recording is smaller.

Every other round is recorded. The output has two figures. One is the share of a recorded round that the recorder
takes. The other is the time of a recorded round, divided by the mean of the plain rounds before and after it. The
first recorded round warms up and is left out of it. Times are by the clock and in CPU seconds, which a busy machine
disturbs less. Each figure is a median, with the smallest and the largest value to show how far it can be trusted.
"""

import json
import logging
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.nn import functional

from leakgauge.core.observation import DataSpec
from leakgauge.federation.recording.flower import Recorder

CLIENTS = 10


class Net(nn.Module):
    """A CNN of the quickstart's sizes, with 62,006 weights."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)])
        self.layers = nn.ModuleList([nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)])

    def forward(self, x):
        """Return class scores."""
        for convolution in self.convolutions:
            x = functional.max_pool2d(functional.relu(convolution(x)), 2)
        first, second, last = self.layers
        return last(functional.relu(second(functional.relu(first(x.flatten(1))))))


class Timed(Recorder):
    """A recorder that measures its own time."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seconds = {}

    def _keep_round(self, round, answers, sent):
        began = time.perf_counter()
        super()._keep_round(round, answers, sent)
        self.seconds[round] = time.perf_counter() - began


class Grid:
    """A grid whose nodes are in this process."""

    def __init__(self, app):
        self.app = app

    def get_node_ids(self):
        """Return all nodes."""
        return range(1, CLIENTS + 1)

    def send_and_receive(self, messages, *, timeout=None):
        """Return the answers, one client after the other."""
        return [
            self.app(message, Context(1, message.metadata.dst_node_id, {}, RecordDict(), {})) for message in messages
        ]


def measure(rounds=6, images=4000):
    """Return the medians, as plain values."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    torch.manual_seed(0)
    pictures, labels = torch.rand(images, 3, 32, 32), torch.randint(10, (images,))
    app = ClientApp()

    @app.train()
    def train(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for rows in torch.randperm(images).split(32):
            optimiser.zero_grad()
            functional.cross_entropy(model(pictures[rows]), labels[rows]).backward()
            optimiser.step()
        records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": images})}
        return Message(content=RecordDict(records), reply_to=message)

    marks, cpu = [], []

    def mark(*_):
        marks.append(time.perf_counter())
        cpu.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        recorder = Timed(folder, model=Net(), data=DataSpec((3, 32, 32), 10, (0,), (1,)), every=2)
        recorder.strategy(FedAvg(fraction_evaluate=0.0)).start(
            grid=Grid(app),
            initial_arrays=ArrayRecord(Net().state_dict()),
            num_rounds=rounds,
            evaluate_fn=mark,
        )
        messages = len(list(Path(folder).rglob("*.safetensors")))
    clock, used = ([after - before for before, after in pairwise(times)] for times in (marks, cpu))
    share = [recorder.seconds[number] / clock[number - 1] for number in range(1, rounds + 1, 2)]
    return {
        "share": _spread(share),
        "recorded_over_plain": _spread(_ratios(clock)),
        "recorded_over_plain_cpu": _spread(_ratios(used)),
        "seconds_a_round": _spread(clock),
        "milliseconds_a_message": 1000 * median(recorder.seconds.values()) / CLIENTS,
        "messages_kept": messages,
    }


def _ratios(seconds):
    return [2 * seconds[n] / (seconds[n - 1] + seconds[n + 1]) for n in range(2, len(seconds) - 1, 2)]


def _spread(values):
    return {"median": median(values), "least": min(values), "most": max(values)} if values else None


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
