"""DP-SGD: clipped, noisy to the right amount, and a budget by Opacus's accountant where that is installed."""

import sys

import pytest
import torch

from leakscope import defences, fedavg
from leakscope.defences import DPSGD, build, dp_sgd
from leakscope.errors import InvalidInput, MissingExtra
from tests.inference.cases import network, table_clients

BUDGET = {"epsilon": 10.0, "delta": 1e-5, "sample_rate": 0.25, "steps": 100}


def gradients(samples=8):
    draw = torch.Generator().manual_seed(0)
    return {
        "kernel": 3 * torch.randn(samples, 30, 20, generator=draw),
        "bias": torch.randn(samples, 30, generator=draw).double(),
    }


def test_without_noise_each_gradient_has_at_most_the_clipping_norm_and_keeps_its_direction():
    given = gradients()
    given = {
        name: value * torch.linspace(0.001, 1, 8).reshape(-1, *[1] * (value.ndim - 1)) for name, value in given.items()
    }
    found = DPSGD(0.0, clip=0.5).on_sample_gradients(given, torch.Generator())
    for row in range(8):
        before, after = (
            torch.cat([value[row].flatten().double() for value in tree.values()]) for tree in (given, found)
        )
        factor = min(1.0, 0.5 / float(before.norm()))
        torch.testing.assert_close(after, before * factor, rtol=1e-5, atol=1e-7)


def test_the_noise_of_the_mean_is_that_of_the_sum_over_the_batch():
    found = DPSGD(4.0, clip=0.5).on_sample_gradients(gradients(), torch.Generator().manual_seed(1))
    quiet = DPSGD(0.0, clip=0.5).on_sample_gradients(gradients(), torch.Generator().manual_seed(1))
    noise = (found["kernel"] - quiet["kernel"]).mean(0)
    assert float(noise.std()) == pytest.approx(4.0 * 0.5 / 8, rel=0.1)


def test_a_private_client_trains():
    (client, *_) = table_clients()
    quiet, _ = fedavg(network(), client, lr=0.1, defences=DPSGD(0.0, clip=1e6))
    plain, _ = fedavg(network(), client, lr=0.1)
    torch.testing.assert_close(quiet.returned, plain.returned)
    defence = DPSGD(1.0)
    assert eval(repr(defence), vars(defences)) == defence


def test_a_budget_without_opacus_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setitem(sys.modules, "opacus.accountants.utils", None)
    with pytest.raises(MissingExtra, match=r'pip install "leakscope\[privacy\]"'):
        dp_sgd(**BUDGET)


@pytest.mark.filterwarnings("ignore")
def test_a_tighter_budget_takes_more_noise():
    pytest.importorskip("opacus")
    loose, tight = (build("dp_sgd", **{**BUDGET, "epsilon": epsilon}) for epsilon in (10.0, 1.0))
    assert 0 < loose.noise_multiplier < tight.noise_multiplier


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"epsilon": 0.0}, "budget"),
        ({"delta": 1.0}, "budget"),
        ({"steps": 0}, "budget"),
    ],
)
def test_budgets_that_cannot_be_are_refused(wrong, words):
    with pytest.raises(InvalidInput, match=words):
        dp_sgd(**{**BUDGET, **wrong})


def test_strengths_that_cannot_be_are_refused():
    with pytest.raises(InvalidInput, match="noise multiplier"):
        DPSGD(-1.0)
    with pytest.raises(InvalidInput, match="above 0"):
        DPSGD(1.0, clip=0)
