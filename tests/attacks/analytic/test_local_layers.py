"""The updates of dense layers show the samples, their number and their labels after several local steps."""

from dataclasses import replace

import pytest
import torch

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.local_layers import LocalLayers
from leakgauge.federation.client import fedavg
from tests.attacks.analytic.cases import DIGITS, dense

SHARE = DIGITS.share(range(6))


def client(**options):
    return fedavg(dense(96, 48), SHARE, **{"lr": 0.05, "epochs": 3, "batch_size": 2, "seed": 0, **options})[0]


def augmented_inputs(layers):
    inputs = layers.chain.entrance  # the order in which the layer gets the pixels
    flat = SHARE.inputs.flatten(1).double()[:, inputs.order] * inputs.scale + inputs.shift
    return torch.cat([flat, torch.ones(len(flat), 1, dtype=torch.double)], 1)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"weight_decay": 0.01}, {"hidden": ["samples"]}])
def test_every_sample_lies_in_the_first_span(options):
    layers = LocalLayers.of(client(**options))
    assert layers.samples == 6
    inputs = augmented_inputs(layers)
    outside = inputs - inputs @ layers.first.right @ layers.first.right.T
    assert float((outside.norm(dim=1) / inputs.norm(dim=1)).max()) < 1e-4


def test_the_labels_of_samples_follow_from_the_update():
    layers = LocalLayers.of(client(lr=0.01))
    assert torch.equal(layers.labels(augmented_inputs(layers), 10), SHARE.targets)
    assert layers.labels(augmented_inputs(layers), None) is None


def test_the_weights_between_the_sent_and_the_returned_ones():
    observation = client()
    layers = LocalLayers.of(observation)
    coordinates = augmented_inputs(layers) @ layers.first.right
    name = next(name for name in observation.sent if name.endswith("weight"))
    for share, weights in ((0.0, observation.sent), (1.0, observation.returned)):
        bias = weights[name.replace("weight", "bias")]
        expected = SHARE.inputs.flatten(1) @ weights[name].T + bias
        assert torch.allclose(coordinates @ layers.layer_at(share).T, expected.double(), atol=1e-3)


def test_directions_of_rounding_are_left_out_and_noise_is_refused():
    observation = client()
    rough = {name: value + 1e-7 * torch.randn_like(value) for name, value in observation.returned.items()}
    assert len(LocalLayers.of(replace(observation, returned=rough)).first.core) == 6
    noisy = {name: value + 1e-3 * torch.randn_like(value) for name, value in observation.returned.items()}
    with pytest.raises(DoesNotFit, match="does not show a span of 6 samples"):
        LocalLayers.of(replace(observation, returned=noisy))
