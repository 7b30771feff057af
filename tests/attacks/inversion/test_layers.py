"""The layers of a model, by kind and in order."""

import pytest
import torch
from torch import nn

from leakgauge import models
from leakgauge.attacks.inversion.layers import layers_of_model
from leakgauge.core.params import parameters_of


def kinds(model):
    return [layer.kind for layer in layers_of_model(model, parameters_of(model))]


def test_resnet20_has_the_21_convolutions_that_agic_counts():
    """Table I of AGIC: N_conv = 21, those of the shortcuts among them."""
    found = kinds(models.resnet20_4(classes=10))
    assert found.count("convolution") == found.count("normalisation") == 21
    assert found[-1] == "linear"
    assert len(found) == 43


def test_a_kernel_and_its_bias_are_one_layer():
    layers = layers_of_model(
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4, bias=False)), ["0.weight", "0.bias", "1.weight"]
    )
    assert [layer.parameters for layer in layers] == [("0.weight", "0.bias"), ("1.weight",)]
    assert [layer.name for layer in layers] == ["0", "1"]


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Conv1d(1, 1, 1), "convolution"), (nn.ConvTranspose2d(1, 1, 1), "convolution"),
        (nn.LayerNorm(3), "normalisation"), (nn.GroupNorm(1, 2), "normalisation"), (nn.BatchNorm3d(2), "normalisation"),
        (nn.Embedding(3, 2), "other"), (nn.GRU(2, 2), "other"),
    ],
    ids=repr,
)  # fmt: skip
def test_other_modules(module, kind):
    assert set(kinds(nn.Sequential(module))) == {kind}


def test_parameters_that_a_module_holds_by_itself():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))
            self.layer = nn.Linear(2, 2)

    assert kinds(Scaled()) == ["other", "linear"]
