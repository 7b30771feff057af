"""Record a hand-written federated loop, and attack what the server saw."""

import copy

import torch
from torch import nn

import leakgauge as lg

torch.manual_seed(0)
digits = lg.data.load("digits")
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Sigmoid(), nn.Flatten(), nn.Linear(288, 10))

data = lg.DataSpec((1, 8, 8), classes=10, mean=(0.5,), std=(0.5,))  # as the clients normalise below
recorder = lg.record("captures", model=net, data=data)
keeper = recorder.keeper()  # the clients' samples, on this machine, for the score

for round in range(1, 3):
    states = []
    for name, rows in {"hospital-1": slice(0, 4), "hospital-3": slice(4, 8)}.items():
        inputs, targets = (digits.inputs[rows] - 0.5) / 0.5, digits.targets[rows]
        local = copy.deepcopy(net)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
        with recorder.client(name, round=round, model=local, optimizer=optimizer, epochs=2, batch_size=4, samples=4):
            for _ in range(2):
                for batch, labels in keeper.watch([(inputs, targets)]):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(local(batch), labels).backward()
                    optimizer.step()
        states.append(local.state_dict())
    net.load_state_dict({key: sum(state[key] for state in states) / len(states) for key in states[0]})

result = lg.attack("captures", "inverting_gradients", options={"steps": 50}, model=net)
for one in result.attacked:
    print(f"{one.capture.client}, round {one.reconstruction.round}: {one.capture.check.sentence}", one.score, sep="\n")
