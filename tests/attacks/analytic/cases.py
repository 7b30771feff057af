"""Small clients with 8 x 8 digits and dense networks."""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from leakgauge import data
from leakgauge.core.data_spec import DataSpec
from leakgauge.evaluation import pair
from leakgauge.federation.client import fedsgd

DIGITS = data.load("digits")
NORMALISED = replace(DIGITS, spec=replace(DIGITS.spec, mean=(0.305,), std=(0.376,)))


def dense(*hidden, activation=nn.ReLU, bias=True, classes=10, seed=0):
    """Return a dense network on flattened digits."""
    torch.manual_seed(seed)
    sizes = [64, *hidden]
    layers = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=bias))


def client(model, samples, *, digits=DIGITS, **options):
    """Return the gradient of a client with the first digits."""
    return fedsgd(model, digits.share(range(samples)), **options)


def worst_error(result, truth):
    """Return the largest error of a pixel, where every sample has a partner."""
    pairing = pair(result.samples, truth.inputs)
    assert bool(pairing.matched.all())
    if result.labels is not None:
        assert torch.equal(pairing.apply(result.labels, missing=-1), truth.targets)
    return float((pairing.apply(result.samples) - truth.inputs).abs().max())


def people(rows, seed=0, categories=(4, 6, 3, 8, 5, 2)):
    """Return a table of random people with three numbers and one-hot columns. The class depends on all columns."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, 3, generator=draw) * torch.tensor([12.0, 2.0, 9.0]) + torch.tensor([40.0, 10.0, 38.0])
    hot = [nn.functional.one_hot(torch.randint(size, (rows,), generator=draw), size).float() for size in categories]
    inputs = torch.cat([numbers, *hot], 1)
    names = ["age", "years", "hours", *(f"f{k}={v}" for k, size in enumerate(categories) for v in range(size))]
    mean, std = [40.0, 10.0, 38.0] + [0.0] * sum(categories), [12.0, 2.0, 9.0] + [1.0] * sum(categories)
    spec = DataSpec((len(names),), 2, tuple(mean), tuple(std), bounded=False, columns=tuple(names))
    weight = torch.randn(len(names), generator=draw)
    scores = spec.normalise(inputs) @ weight
    return data.Dataset(inputs, (scores > scores.median()).long(), spec, name="people")


def table_network(width=31, hidden=(80, 80), seed=0):
    """Return a dense network for rows of a table."""
    torch.manual_seed(seed)
    sizes = [width, *hidden]
    layers = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 2))


def rows_right(result, table):
    """Return how many rows of a table are in a result, and how many rows of the result are in no row of the table."""
    found, true = table.spec.normalise(result.samples), table.spec.normalise(table.inputs)
    near = torch.cdist(found.double(), true.double(), p=torch.inf) < 0.1
    return int(near.any(0).sum()), int((~near.any(1)).sum())
