"""The training script of a site: it trains on its own digits and returns the weights."""

import argparse

import nvflare.client as flare
import torch
from model import Net
from torch.utils.data import DataLoader, TensorDataset

import leakgauge as lg
from leakgauge.federation.recording.nvflare_keeper import Keeper

DATA = lg.DataSpec((1, 28, 28), classes=10, mean=(0.5,), std=(0.5,))  # as the digits are normalised below


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kept", default="captures")
    arguments = parser.parse_args()

    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2])
    digits = lg.data.load("mnist5k")
    rows = slice(site * arguments.samples, (site + 1) * arguments.samples)
    inputs, targets = (digits.inputs[rows] - 0.5) / 0.5, digits.targets[rows]
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=arguments.batch_size, shuffle=True)
    keeper = Keeper(arguments.kept, data=DATA)
    loader = keeper.watch(loader)

    net = Net()
    criterion = torch.nn.CrossEntropyLoss()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        with keeper.training(received):
            for _ in range(arguments.epochs):
                for batch, labels in loader:
                    optimizer.zero_grad()
                    criterion(net(batch), labels).backward()
                    optimizer.step()
        steps = arguments.epochs * len(loader)
        flare.send(flare.FLModel(params=net.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": steps}))


if __name__ == "__main__":
    main()
