"""The ceiling of chains of defences, and an attack that comes as near to it as the theory allows."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from leakgauge.core.observation import LocalTraining
from leakgauge.evaluation.bounds import dpsgd_success, epsilon_success, supports_nothing_found
from leakgauge.federation.client import fedsgd
from leakgauge.federation.defence import TrainingDefence
from leakgauge.federation.defences import DPSGD, Clipping, GaussianNoise, LocalWork, Mixup, SecureAggregation
from leakgauge.workflows.audit.ceiling import bound_of, bound_on
from leakgauge.workflows.scenario import Scenario
from tests.shared import digits

RECIPE = LocalTraining(lr=0.1, epochs=3, batch_size=5, samples=50)


def test_dpsgd_is_found_in_a_chain_with_its_rate_and_steps():
    bound = bound_of((DPSGD(noise=2.0), GaussianNoise(0.1, on="update"), SecureAggregation(4)), RECIPE)
    assert bound.success == dpsgd_success(2.0, 0.1, 30, 0.1)
    assert bound.epsilon == DPSGD(noise=2.0).spent(RECIPE)
    assert bound.delta == 1e-5


def test_the_recipe_is_that_of_the_whole_chain():
    bound = bound_of((LocalWork(epochs=1, batch_size=25), DPSGD(noise=2.0)), RECIPE)
    assert bound.success == dpsgd_success(2.0, 0.5, 2, 0.1)


def test_more_rounds_raise_the_ceiling_unless_the_budget_is_spread():
    once, often = (bound_of((DPSGD(noise=2.0),), RECIPE, participations=rounds) for rounds in (1, 10))
    assert once.success < often.success
    spread = bound_of((DPSGD(epsilon=2.0),), RECIPE, participations=10)
    unspread = bound_of((DPSGD(epsilon=2.0),), RECIPE, participations=1)
    assert spread.success == pytest.approx(unspread.success, abs=0.1)
    assert bound_of((DPSGD(epsilon=2.0),), RECIPE, planned=10).success < unspread.success


@pytest.mark.parametrize("chain", [(), (Clipping(1.0), GaussianNoise(1.0)), (Mixup(), DPSGD(noise=2.0))])
def test_chains_without_a_proof_about_samples_have_no_ceiling(chain):
    assert bound_of(chain, RECIPE) is None


def test_epsilon_decides_whether_the_proof_is_strong():
    one_gradient = LocalTraining(lr=1.0, epochs=1, batch_size=8, samples=8)
    for recipe in (RECIPE, one_gradient):
        assert supports_nothing_found(bound_of((DPSGD(epsilon=1.0),), recipe))
        assert not supports_nothing_found(bound_of((DPSGD(epsilon=2.0),), recipe))


@dataclass(frozen=True)
class OwnTraining(TrainingDefence):
    """A user's own private training, which reports its budget."""

    name: ClassVar[str] = ""
    delta: float | None = 1e-6

    def train(self, *arguments):
        raise NotImplementedError

    def gradient(self, *arguments):
        raise NotImplementedError

    def check(self, *arguments):
        pass

    def spent(self, training, participations=1, *, planned=None):
        return 0.1 * participations


def test_another_private_training_has_the_ceiling_of_its_budget():
    assert bound_of((OwnTraining(),), RECIPE, participations=2).success == epsilon_success(0.2, 1e-6, 0.1)
    assert bound_of((OwnTraining(delta=None),), RECIPE) is None


@pytest.mark.parametrize(("sends", "rate", "steps"), [("gradient", 1.0, 1), ("weights", 0.25, 8)])
def test_the_ceiling_of_a_scenario_is_about_what_its_clients_send(sends, rate, steps):
    training = {"sends": sends, "samples": 20, "epochs": 2, "batch_size": 5}
    scenario = Scenario({"name": "mlp"}, {"name": "digits"}, training)
    assert bound_on(scenario, (DPSGD(noise=3.0),)).success == dpsgd_success(3.0, rate, steps, 0.1)


def test_the_best_attack_on_our_client_reaches_the_ceiling_and_does_not_exceed_it():
    """The attacker knows the other sample and ten candidates for the second one, and takes the likeliest."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    candidates, other, noise, trials = range(1, 11), 0, 0.7, 100

    def gradient(rows, **options):
        update = fedsgd(model, digits().share(rows), **options)[0].difference()
        return torch.cat([value.flatten() for value in update.values()])

    clean = torch.stack([gradient([other, row], defences=DPSGD(noise=1e-9, clip=0.1)) for row in candidates])
    right = 0
    for trial in range(trials):
        secret = trial % len(candidates)
        seen = gradient([other, 1 + secret], defences=DPSGD(noise=noise, clip=0.1), seed=trial)
        right += int((clean - seen).norm(dim=1).argmin()) == secret
    recipe = LocalTraining(lr=1.0, epochs=1, batch_size=2, samples=2)
    bound = bound_of((DPSGD(noise=noise),), recipe)
    assert right / trials < bound.success + 0.1
    assert right / trials > bound.success / 2 > 0.2
