"""Models of the client in bfloat16, on processors with instructions for it and without."""

import logging
from typing import Any

import pytest
import torch

from leakgauge.attacks.inversion import mixed_precision
from leakgauge.attacks.inversion.mixed_precision import MixedPrecision, computes_bfloat16
from leakgauge.attacks.inversion.objectives import L2
from leakgauge.attacks.inversion.update_models import EpochInterpolation, FullSimulation, OneBatch, Surrogate
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg
from leakgauge.federation.model_check import prepared
from tests.attacks.inversion.test_update_models import client, distance, network, trained_in_one_order

X86 = {"avx2": True, "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}


@pytest.fixture(autouse=True)
def processor(monkeypatch):
    """Return a function that gives the processor other features. At first it has instructions for bfloat16."""

    def becomes(features: dict[str, Any]) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
        mixed_precision._processor_has_bfloat16.cache_clear()
        mixed_precision._say_once.cache_clear()

    becomes(X86 | {"avx512_bf16": True})
    yield becomes
    mixed_precision._processor_has_bfloat16.cache_clear()
    mixed_precision._say_once.cache_clear()


@pytest.mark.parametrize("base", [OneBatch(), FullSimulation(), EpochInterpolation(), Surrogate()], ids=repr)
@pytest.mark.parametrize("functional", [False, True])
def test_mixed_precision_is_near_the_full_one(base, functional):
    own = client(4)
    observation, _ = fedavg(network().float(), own, lr=0.01, epochs=2, batch_size=2)
    inputs, targets = prepared(own, observation.sent)

    def slope(update_model):
        predict = update_model.begin(observation, functional=functional)
        leaf = (inputs * 0.5).requires_grad_()
        update = predict(leaf, targets, **predict.extra)
        assert all(update[name].dtype == value.dtype for name, value in observation.sent.items())
        (found,) = torch.autograd.grad(L2()(update, observation.summed_gradient()), leaf)
        return found.flatten(), flatten(update).detach()

    for full, mixed in zip(slope(base), slope(MixedPrecision(base)), strict=True):
        assert 0 < (full - mixed).norm() < 0.1 * full.norm()


def test_what_a_model_says_of_its_variables_holds_in_mixed_precision():
    observation, _, _ = trained_in_one_order()
    for base in (FullSimulation(per_epoch=True, new_orders=True), FullSimulation(), OneBatch()):
        plain, mixed = (model.begin(observation, functional=False) for model in (base, MixedPrecision(base)))
        assert (plain.copies, plain.batches, plain.epoch_labels) == (mixed.copies, mixed.batches, mixed.epoch_labels)
        assert MixedPrecision(base).new_orders == getattr(base, "new_orders", False)


def test_double_precision_is_not_mixed():
    observation, inputs, targets = trained_in_one_order()
    assert distance(MixedPrecision(FullSimulation()), observation, inputs, targets) == 0


@pytest.mark.parametrize("functional", [False, True])
def test_a_processor_without_bfloat16_ignores_it_with_a_word(functional, processor, caplog):
    processor(X86)
    observation, _ = fedavg(network().float(), client(4), lr=0.01, epochs=2, batch_size=2)
    inputs, targets = prepared(client(4), observation.sent)
    with caplog.at_level(logging.WARNING, "leakgauge"):
        plain, mixed = (
            model.begin(observation, functional=functional)(inputs, targets)
            for model in (FullSimulation(), MixedPrecision(FullSimulation()))
        )
        MixedPrecision(OneBatch()).begin(observation, functional=functional)
    assert torch.equal(flatten(plain), flatten(mixed))
    assert len(caplog.messages) == 1
    assert "mixed is ignored" in caplog.messages[0]


@pytest.mark.parametrize(
    ("features", "expected"),
    [(X86, False), (X86 | {"amx_bf16": True}, True), ({"neon": True, "bf16": False}, False), ({"bf16": True}, True)],
)
def test_the_features_of_the_processor_decide(features, expected, processor):
    processor(features)
    assert computes_bfloat16(torch.device("cpu")) is expected


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_the_generation_of_a_gpu_decides(capability, expected, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert computes_bfloat16(torch.device("cuda")) is expected
