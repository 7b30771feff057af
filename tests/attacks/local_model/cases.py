"""Small federations whose clients are recorded for many rounds."""

import torch

from leakgauge import Dataset, DataSpec, models, run_federation
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum


def linear_clients(size, clients=6, rows=None, seed=0, noise=0.5, scale=1.0):
    """Return clients with regressions whose true models differ."""
    draw = torch.Generator().manual_seed(seed)
    spec = DataSpec((size,), None, bounded=False, columns=tuple(f"x{column}" for column in range(size)))
    datasets = []
    for client in range(clients):
        inputs = torch.randn(rows or 3 * size, size, generator=draw, dtype=torch.double)
        true = scale * torch.randn(size, generator=draw, dtype=torch.double)
        targets = inputs @ true + noise * torch.randn(len(inputs), generator=draw, dtype=torch.double)
        datasets.append(Dataset(inputs, targets, spec, name=f"client {client}"))
    return datasets


def linear(size):
    return models.build("mlp", shape=[size], classes=1, hidden=[], seed=0).double()


def watched(model, clients, *, rounds, watch=(0,), lr=0.05, seed=0, **options):
    """Return the observations of each recorded client."""
    return run_federation(model, clients, rounds=rounds, lr=lr, watch=watch, seed=seed, **options).observations


def table_clients(clients=3, rows=40, seed=0, classes=2):
    """Return clients with a binary column, numbers and a category, whose true models differ."""
    draw = torch.Generator().manual_seed(seed)
    columns = ("secret", "number", "other", "job=a", "job=b", "job=c")
    spec = DataSpec((6,), classes, bounded=False, columns=columns)
    datasets = []
    for client in range(clients):
        job = torch.nn.functional.one_hot(torch.randint(3, (rows,), generator=draw), 3).float()
        secret = torch.randint(2, (rows, 1), generator=draw).float()
        inputs = torch.cat((secret, torch.randn(rows, 2, generator=draw), job), dim=1)
        true = torch.randn(6, classes, generator=draw)
        true[0] = torch.tensor([-2.0, 2.0] + [0.0] * (classes - 2))
        targets = (inputs @ true).argmax(1)
        datasets.append(Dataset(inputs, targets, spec, name=f"client {client}", sensitive="secret"))
    return datasets


def network(classes=2, **options):
    return models.build("mlp", shape=[6], classes=classes, hidden=[16], seed=0, **options)


def distance(model, client):
    """Return the relative distance of a model from the client's optimum."""
    optimum = least_squares_optimum(client, bias=True)
    return float((flatten(model.weights) - flatten(optimum)).norm() / flatten(optimum).norm())
