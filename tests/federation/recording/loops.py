"""A recorder, states and a training that the tests of recorded loops share."""

import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge import DataSpec
from tests.federation.networks import client, mlp

DATA = DataSpec((1, 4, 4), 3, mean=(0,), std=(1,))
AVG = {"lr": 0.1, "epochs": 2, "batch_size": 3}
RECIPE = {**AVG, "samples": 6}


@pytest.fixture
def recorder(tmp_path):
    torch.manual_seed(0)
    return lg.record(tmp_path, model=mlp(), data=DATA)


def states(observation):
    """The state dicts that a client got and returned, as the loop of an app has them."""
    before = {**observation.sent, **(observation.buffers or {})}
    return before, {**observation.returned, **(observation.returned_buffers or {})}


def training(net, optimizer, seed=0, steps=2):
    data = client(4, seed=seed)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.inputs), data.targets).backward()
        optimizer.step()
