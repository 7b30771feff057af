"""Small clients with 8 x 8 digits and dense networks."""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from leakgauge import data
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
