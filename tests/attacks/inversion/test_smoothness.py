"""One forward pass shows kinks, also those of functions, and counts multiplications."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakgauge import data, models
from leakgauge.attacks.inversion.smoothness import forward_pass
from leakgauge.federation.client import fedsgd


class Functional(nn.Module):
    """A network whose activation is a function."""

    def __init__(self, activation):
        super().__init__()
        self.activation, self.first, self.head = activation, nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, inputs):
        return self.head(self.activation(self.first(inputs.flatten(1))))


def seen(model, mode="eval"):
    return forward_pass(fedsgd(model, data.load("digits").share(range(2)), mode=mode)[0])


@pytest.mark.parametrize(
    ("activation", "kinks"),
    [
        (torch.sigmoid, ()),
        (torch.tanh, ()),
        (F.gelu, ()),
        (F.softplus, ()),
        (F.relu, ("relu",)),
        (lambda value: value.clamp(min=0), ("clamp",)),
        (F.leaky_relu, ("leaky_relu",)),
        (lambda value: F.max_pool1d(value.unsqueeze(1), 2, 1, padding=1).squeeze(1)[:, :16], ("max_pool2d",)),
    ],
)
def test_functions_are_seen(activation, kinks):
    assert seen(Functional(activation)).kinks == kinks


def test_modules_are_named_as_in_the_model():
    assert seen(models.lenet(shape=(1, 8, 8), activation="relu", seed=0)).kinks == ("ReLU",)
    assert seen(models.lenet(shape=(1, 8, 8), seed=0)).kinks == ()


def test_multiplications_are_those_of_one_sample():
    assert seen(Functional(torch.tanh)).operations == 64 * 16 + 16 * 10


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batch_norm_is_left_alone(mode):
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(16,), batch_norm=True, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert seen(model, mode).kinks == ("ReLU",)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
