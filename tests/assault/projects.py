"""Small projects of a user, whose code does what a test asks for."""

import itertools
from pathlib import Path

_CODE = """
import atexit, os, sys
import torch
from torch import nn
from leakgauge import DataSpec, Dataset
{top}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def forward(self, x):
        {forward}
        attacked = x.requires_grad
        if attacked:
            {attacked}
        return self.layer(torch.sigmoid(x.flatten(1)))

def model():
    {model}
    return Net()

def data():
    {data}
    samples = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Dataset(samples, torch.arange(12) % 4, DataSpec((1, 8, 8), 4))

def loss(outputs, targets):
    {loss}
    return nn.functional.cross_entropy(outputs, targets)
"""
_CONFIG = """
[model]
name = "{name}:model"
[data]
factory = "{name}:data"
[training]
sends = "gradient"
samples = 1
loss = "{name}:loss"
[attacker]
granted = ["labels"]
[audit]
attacks = [{{ name = "idlg", steps = 3 }}]
clients = 2
"""
_numbers = itertools.count()


def write_project(folder: Path, **lines: str) -> Path:
    """Write a module and a configuration that uses it, and return the path of the configuration.

    Args:
        folder: The folder of the project.
        lines: Lines of Python for the module: ``top``, ``forward``, ``attacked`` (in ``forward`` while an attack
            calls it), ``model``, ``data`` and ``loss``.
    """
    name = f"own_{next(_numbers)}"  # a module is imported only once
    places = ("top", "forward", "attacked", "model", "data", "loss")
    (folder / f"{name}.py").write_text(_CODE.format(**{place: lines.get(place, "pass") for place in places}))
    config = folder / "audit.toml"
    config.write_text(_CONFIG.format(name=name))
    return config
