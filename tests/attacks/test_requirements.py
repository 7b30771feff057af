"""Requirements of attacks: what needs too much memory, too many steps or another model is refused before it starts."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import attacks, models
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.requirements import MOST_SIMULATED, Workload, check_requirements, kept_by_forward_pass
from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.core.observation import DataSpec, LocalTraining, Observation
from leakgauge.runtime import memory

SAMPLES = [spec.name for spec in attacks.specs(recovers="samples", reads="update")]
SHAPE = (1, 8, 8)


def observed(model=None, *, shape=SHAPE, classes=10, gradient=False, **changes):
    """A message of a client that never trained, with any recipe."""
    model = model or models.build("mlp", shape=SHAPE, classes=10, hidden=(8,), seed=0)
    sent = {name: value.detach() for name, value in model.named_parameters()}
    moved = {name: value + 0.01 * torch.randn_like(value) for name, value in sent.items()}
    known = {name: changes.pop(name) for name in list(changes) if name in LocalTraining.__dataclass_fields__}
    training = LocalTraining(**{"lr": 0.1, "epochs": 1, "batch_size": 4, "samples": 4, **known})
    answer = {"gradient": moved} if gradient else {"returned": moved}
    return Observation(model=model, data=DataSpec(shape, classes), sent=sent, training=training, **answer, **changes)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_attack_refuses_a_billion_samples_at_once(name, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 16 * 2**30)
    for gradient in (False, True):
        observation = observed(gradient=gradient, samples=10**9, batch_size=10**9)
        began = time.process_time()
        with pytest.raises(
            InvalidInput, match=r"needs about .* (GiB|TiB) of memory for 1,000,000,000 samples .*--know"
        ):
            attacks.build(name)(observation, progress=False)
        assert time.process_time() - began < 20


def test_label_counts_are_limited_by_memory_too(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    counts = torch.tensor([10**8] * 10)
    observation = observed(gradient=True, samples=None, label_counts=counts)
    with pytest.raises(InvalidInput, match="for 1,000,000,000 samples"):
        attacks.idlg(steps=1)(observation)


@pytest.mark.parametrize("name", ["inverting_gradients", "dlf", "prior_path", "lbfgs_simulation", "invg_simulation"])
def test_absurd_numbers_of_local_steps_are_refused(name):
    observation = observed(epochs=MOST_SIMULATED + 1)
    with pytest.raises(
        InvalidInput, match=rf"trained on 10,001 batches, and an attack simulates up to {MOST_SIMULATED:,}"
    ):
        attacks.build(name).check(observation)
    attacks.build(name).check(observed(epochs=2))


def test_an_attack_that_simulates_no_steps_takes_any_number_of_them():
    attacks.agic(steps=1).check(observed(epochs=10**6))


def test_more_restarts_copies_and_dummies_need_more_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**20 - 1)
    observation = observed(epochs=4)
    one = attacks.inverting_gradients(steps=1)
    assert one.workload(observation).values == 4
    assert one.with_settings(restarts=3).workload(observation).values == 12
    per_epoch = attacks.dlf(steps=1).workload(observation)
    assert (per_epoch.values, per_epoch.simulation.copies) == (16, 4)
    large = observed(epochs=4, samples=400, batch_size=400)
    vectorised = one.with_settings(restarts=3, vectorise=True).workload(large)
    assert vectorised.graphs == 3 * one.workload(large).graphs == 3 * 4 * 400
    for changes in ({"values": 2**20}, {"dummies": 2**20}):
        with pytest.raises(InvalidInput, match="of memory"):
            check_requirements(observation, replace(Workload(1, 1), **changes))


def test_predicted_labels_of_every_local_step_need_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 100 * 2**20)
    observation = observed(epochs=10**6)
    with pytest.raises(InvalidInput, match="of memory"):
        attacks.agic(steps=1).with_settings(labels=LastLayer()).check(observation)
    attacks.agic(steps=1).with_settings(labels=LastLayer()).check(observed(epochs=10))


def test_labels_that_are_granted_need_no_dummies():
    attack = attacks.inverting_gradients(steps=1)
    assert attack.workload(observed()).dummies == 1000
    assert attack.workload(observed(labels=torch.zeros(4, dtype=torch.long))).dummies == 0


def test_the_estimate_follows_the_memory_that_an_attack_takes():
    model = models.build("mlp", shape=(3, 64, 64), classes=10, hidden=(8,), seed=0)
    observation = observed(model, shape=(3, 64, 64), samples=300, batch_size=300, labels=torch.zeros(300).long())
    attack, needs = attacks.inverting_gradients(steps=1), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakgauge.attacks.requirements._check_memory", lambda *given: needs.append(given[-1]))
        attack.check(observation)
    attack(observation.knowing(samples=2, labels=observation.labels[:2], batch_size=2), progress=False)  # warm up
    memory.reset_peak()
    before = memory.peak()
    attack(observation, progress=False)
    assert 0.3 < needs[-1] / (memory.peak() - before) < 1.5


@pytest.mark.parametrize("shape", [(1, 9, 9), (64,), (2, 64), (1, 30_000, 30_000)])
def test_samples_that_the_model_does_not_accept_are_refused(shape):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10))
    with pytest.raises(InvalidInput, match=r"the model does not accept the samples of client.*Is this the right model"):
        kept_by_forward_pass(observed(model, shape=shape, gradient=True))


def test_more_classes_than_the_model_has_are_refused():
    with pytest.raises(InvalidInput, match=r"has 11 classes, and the model returns values of shape \(10,\)"):
        attacks.idlg(steps=1).check(observed(classes=11, gradient=True))


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
def test_a_loss_that_does_not_fit_the_output_is_refused(loss):
    observation = observed(loss=loss, gradient=True, labels=torch.zeros(4, dtype=torch.long))
    with pytest.raises(InvalidInput, match=rf"the loss '{loss}' of client compares values of shape \(10,\)"):
        attacks.idlg(steps=1).check(observation)
    values = observed(loss="mse", classes=None, gradient=True, labels=torch.zeros(4, 10))
    attacks.idlg(steps=1).check(values)


def test_an_unknown_loss_is_refused():
    with pytest.raises(LeakgaugeError, match="loss 'mine'"):
        attacks.idlg(steps=1).check(observed(loss="mine", gradient=True))


class Odd(nn.Module):
    """A network that torch cannot trace, because it reads a value."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        outputs = self.head(inputs.flatten(1))
        return outputs if float(outputs.detach().sum()) < 1e9 else 0 * outputs


def test_a_forward_pass_is_measured_without_memory_and_without_drawing(monkeypatch):
    model = models.build("resnet20", classes=10, seed=0)
    observation, odd, huge = observed(model, shape=(3, 32, 32)), observed(Odd()), observed(model, shape=(3, 4096, 4096))
    state = torch.get_rng_state()
    small = kept_by_forward_pass(observation)
    assert 10**5 < small < 10**6
    monkeypatch.setattr("leakgauge.attacks.requirements._SMALL", 0)  # every sample is traced
    assert kept_by_forward_pass(observation) == pytest.approx(small, rel=0.01)
    assert kept_by_forward_pass(odd) >= 64
    assert torch.equal(torch.get_rng_state(), state)
    memory.reset_peak()
    before = memory.peak()
    assert kept_by_forward_pass(huge) > 10**9
    assert memory.peak() - before < 200 * 2**20


@pytest.mark.parametrize("gradient", [False, True])
def test_a_batch_of_one_sample_is_refused_where_batch_norm_cannot_train_on_it(gradient):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    running = model[2].running_mean.clone()
    recipe = {"samples": 1, "batch_size": 1} if gradient else {"samples": 5, "batch_size": 2}
    impossible = observed(model, gradient=gradient, mode="train", **recipe)
    with pytest.raises(InvalidInput, match=r"client cannot have trained .* batch of one sample.*--know mode=eval"):
        attacks.inverting_gradients(steps=1)(impossible, progress=False)
    assert torch.equal(model[2].running_mean, running)
    attacks.inverting_gradients(steps=1).check(observed(model, gradient=gradient, mode="eval", **recipe))
    maps = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))
    attacks.inverting_gradients(steps=1).check(observed(maps, gradient=gradient, mode="train", **recipe))
