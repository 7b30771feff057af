"""The model, the data and the training that server and clients share."""

import torch
from torch import nn
from torch.nn import functional

import leakgauge as lg

CLASSES = 10
DATA = lg.DataSpec(shape=(1, 28, 28), classes=CLASSES, mean=(0,), std=(1,))  # train() does not normalise


class Net(nn.Module):
    """Two convolutions and three linear layers. The original quickstart has 6 and 16 channels."""

    def __init__(self, channels=(32, 64)):
        super().__init__()
        first, second = channels
        self.conv1 = nn.Conv2d(1, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.fc1 = nn.Linear(second * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)

    def forward(self, x):
        """Return the class scores."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


def client_data(partition, samples):
    """Return the digits of one client, the same in every run. No two clients share a digit."""
    data = lg.data.load("mnist5k")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return data.share(order[partition * samples : (partition + 1) * samples], f"client-{partition}")


def train(model, data, *, lr, epochs, batch_size, watch=iter):
    """Train by plain SGD, and return the mean loss of the last epoch. A keeper watches the batches."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        losses = []
        batches = [(data.inputs[rows], data.targets[rows]) for rows in torch.randperm(len(data)).split(batch_size)]
        for inputs, targets in watch(batches):
            loss = functional.cross_entropy(model(inputs), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)
