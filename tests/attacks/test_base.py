"""The work that a call of an attack does around ``run``."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from leakgauge.attacks import Attack, Reconstruction, inverting_gradients
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.client import fedsgd
from leakgauge.testing import check_attack
from tests.shared import digits, shared_case


@dataclass(frozen=True)
class Guess(Attack):
    """Draws from torch's global generator, as a dropout layer would."""

    size: int = 8

    def run(self, observation, seed, report):
        samples = torch.rand(2, 1, 8, self.size, requires_grad=True)
        return Reconstruction(samples, torch.tensor([0, 1]), Outcome("finished", 0, "guessed"))


@dataclass(frozen=True)
class NotOne(Attack):
    def run(self, observation, seed, report):
        return None


def test_torch_is_seeded_for_the_run_and_the_callers_generator_stands_still():
    before = torch.get_rng_state()
    first, again, other = (Guess()(shared_case()[0], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.samples, again.samples)
    assert not torch.equal(first.samples, other.samples)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_draws_the_same_masks_for_the_same_seed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Sigmoid(), nn.Linear(32, 10))
    observation, _ = fedsgd(model, digits().share([0, 1]))
    check_attack(inverting_gradients(steps=3), observation=observation)


def test_the_result_is_detached_and_says_where_it_comes_from():
    observation = replace(shared_case()[0], client="alice", round=4)
    result = Guess()(observation, seed=np.int64(7))
    assert type(result.seed) is int
    assert not result.samples.requires_grad
    assert (result.client, result.round, result.attack, result.seed) == ("alice", 4, "Guess(size=8)", 7)


def test_moving_to_a_device_copies_and_changes_nothing():
    here, there = (Guess()(shared_case()[0], device=device) for device in (None, "cpu"))
    assert torch.equal(here.samples, there.samples)


def test_samples_of_another_shape_are_refused():
    with pytest.raises(InvalidInput, match=r"Guess\(size=5\) returned samples of shape \(1, 8, 5\).*have \(1, 8, 8\)"):
        Guess(size=5)(shared_case()[0])


def test_what_is_no_reconstruction_is_refused():
    with pytest.raises(InvalidInput, match=r"returned a NoneType, but run\(\) must return a Reconstruction"):
        NotOne()(shared_case()[0])


def test_what_is_no_observation_no_seed_or_no_device_is_refused():
    for wrong in (None, "observation", 3, torch.zeros(2)):
        with pytest.raises(InvalidInput, match=f"takes an Observation, not {type(wrong).__name__}"):
            Guess()(wrong)
    for wrong in ("0", 1.5, None, True):
        with pytest.raises(InvalidInput, match="seed must be a whole number, not"):
            Guess()(shared_case()[0], seed=wrong)
    with pytest.raises(InvalidInput, match="cannot run on device 'toaster'"):
        Guess()(shared_case()[0], device="toaster")


def test_an_attack_without_run_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Attack()
