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

for round in range(1, 3):
    states = []
    for name, rows in {"hospital-1": slice(0, 4), "hospital-3": slice(4, 8)}.items():
        inputs, targets = (digits.inputs[rows] - 0.5) / 0.5, digits.targets[rows]
        local = copy.deepcopy(net)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
        with recorder.client(name, round=round, model=local, optimizer=optimizer, epochs=2, batch_size=4, samples=4):
            for _ in range(2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(inputs), targets).backward()
                optimizer.step()
        states.append(local.state_dict())
    net.load_state_dict({key: sum(state[key] for state in states) / len(states) for key in states[0]})

for observation in lg.load_rounds("captures", "hospital-3", net):
    result = lg.attacks.inverting_gradients(steps=50)(observation)
    truth = lg.Truth(digits.inputs[4:8], digits.targets[4:8], data)
    print(f"round {observation.round}", lg.score(result, truth), sep="\n")
