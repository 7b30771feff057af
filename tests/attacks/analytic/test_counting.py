"""The number of samples in a gradient, and the equations that a convolution gives."""

import pytest
import torch
from torch import nn

from leakgauge import models
from leakgauge.attacks.analytic.counting import convolution_equations, count_samples
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import GaussianNoise
from tests.attacks.analytic.cases import DIGITS, client, dense


@pytest.mark.parametrize("samples", [1, 5, 12])
@pytest.mark.parametrize("bias", [True, False])
def test_the_rank_counts_the_samples(samples, bias):
    assert count_samples(client(dense(48, bias=bias), samples, hidden=["samples"])[0]) == samples


def test_copies_are_counted_once():
    assert count_samples(fedsgd(dense(48), DIGITS.share([0, 1, 1]))[0]) == 2


def test_features_are_counted_where_samples_enter_no_dense_layer():
    model = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[16, 32], dense=64, seed=0)
    assert count_samples(client(model, 6, hidden=["samples"])[0]) == 6


def test_what_cannot_be_counted_is_none():
    assert count_samples(client(dense(16), 14)[0]) is None
    assert count_samples(client(dense(48), 4, defences=[GaussianNoise(1.0)])[0]) is None
    assert count_samples(fedavg(dense(48), DIGITS.share(range(4)), lr=0.1, epochs=2, batch_size=4)[0]) is None
    assert count_samples(client(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), 2)[0]) is None


def convolution(channels, **options):
    torch.manual_seed(0)
    body = nn.Conv2d(1, channels, 3, **options)
    with torch.no_grad():
        size = body(torch.zeros(1, 1, 8, 8)).numel()
    return nn.Sequential(body, nn.Sigmoid(), nn.Flatten(), nn.Linear(size, 10))


def test_enough_and_too_few_equations():
    enough = convolution_equations(client(convolution(4, padding=1), 1)[0])
    assert enough == (
        "The first convolution's gradient and weights give 292 equations for 64 unknowns, so a single sample is "
        "determined if the later layers are solved first (R-GAP's count)."
    )
    too_few = convolution_equations(client(convolution(1, stride=3), 1)[0])
    assert "give 13 equations for 64 unknowns, so a single sample is not determined" in too_few


def test_without_a_first_convolution_there_is_no_statement():
    assert convolution_equations(client(dense(48), 1)[0]) is None
    frozen = convolution(4)
    frozen[0].weight.requires_grad_(False)
    assert convolution_equations(client(frozen, 1)[0]) is None
