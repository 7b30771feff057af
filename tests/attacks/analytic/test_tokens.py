"""The layers that make tokens are found by what they compute."""

import pytest
import torch
from torch import nn

from leakgauge import data, models
from leakgauge.attacks.analytic.tokens import find_patch_layer, find_positions
from leakgauge.federation.client import fedsgd

DIGIT = data.load("digits").share([0])


class Scaled(nn.Module):
    """A transformer whose tokens are scaled, and whose positions are a map of an image."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, 24, 4, 4))
        self.look = nn.Conv2d(1, 24, 2, stride=2)
        self.mix = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.answer = nn.Linear(24, 10)

    def forward(self, inputs):
        tokens = 4.0 * self.look(inputs) + self.place
        return self.answer(self.mix(tokens.flatten(2).transpose(1, 2)).mean(1))


class Unscaled(Scaled):
    """A transformer that normalises its patches before positions are added."""

    def forward(self, inputs):
        tokens = nn.functional.layer_norm(self.look(inputs), (4, 4)) + self.place
        return self.answer(self.mix(tokens.flatten(2).transpose(1, 2)).mean(1))


class Padded(nn.Module):
    """A network that pads its input, so that its patches are no part of the sample."""

    def __init__(self):
        super().__init__()
        self.look = nn.Conv2d(1, 24, 2, stride=2)
        self.answer = nn.Linear(24, 10)

    def forward(self, inputs):
        return self.answer(self.look(nn.functional.pad(inputs, (1, 1, 1, 1))).flatten(2).mean(2))


def message(model):
    return fedsgd(model, DIGIT)[0]


@pytest.mark.parametrize(("pooling", "first"), [("token", 1), ("mean", 0)])
def test_the_layers_of_our_transformer(pooling, first):
    observation = message(models.vit(shape=(1, 8, 8), patch=2, width=24, pooling=pooling, seed=0))
    layer = find_patch_layer(observation)
    assert layer is not None
    assert (layer.name, layer.width, tuple(layer.pixels.shape)) == ("patches", 24, (16, 4))
    assert layer.pixels[1].tolist() == [2, 3, 10, 11]
    positions = find_positions(observation, layer)
    assert positions is not None
    assert (positions.name, positions.first) == ("positions", first)
    assert positions.scale == pytest.approx(1)


def test_a_last_layer_of_zeros_hides_no_layer():
    model = models.vit(shape=(1, 8, 8), patch=2, width=24, seed=0)
    nn.init.zeros_(model.head.weight)
    observation = message(model)
    layer = find_patch_layer(observation)
    assert layer is not None
    assert find_positions(observation, layer) is not None


def test_positions_may_be_a_map_and_tokens_may_be_scaled():
    observation = message(Scaled())
    layer = find_patch_layer(observation)
    assert layer is not None
    positions = find_positions(observation, layer)
    assert positions is not None
    assert positions.name == "place"
    assert positions.scale == pytest.approx(4)


@pytest.mark.parametrize("frozen", [False, True])
def test_positions_must_be_trained_and_be_added_to_the_output_of_the_layer(frozen):
    model = Scaled() if frozen else Unscaled()
    model.place.requires_grad_(not frozen)
    observation = message(model)
    layer = find_patch_layer(observation)
    assert layer is not None
    assert find_positions(observation, layer) is None


@pytest.mark.parametrize(
    "model",
    [
        models.lenet(shape=(1, 8, 8)),
        models.mlp(shape=(1, 8, 8), classes=10),
        models.resnet20(shape=(1, 8, 8)),
        Padded(),
    ],
)
def test_other_networks_embed_no_patches(model):
    assert find_patch_layer(message(model)) is None


def test_a_frozen_layer_embeds_no_patches():
    model = models.vit(shape=(1, 8, 8), patch=2, width=24, seed=0)
    model.patches.requires_grad_(False)
    assert find_patch_layer(message(model)) is None
