"""A malicious server that sends one client weights of its own making."""

from itertools import pairwise

import pytest
import torch

from leakgauge import run_federation
from leakgauge.attacks.local_model import ActiveAdam, Isolation, LastReturned, Messages
from leakgauge.attacks.registry import ATTACKS
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from leakgauge.federation.steering import Steering
from tests.attacks.local_model.cases import distance, linear, linear_clients, watched


def steered(rule, rounds=40, clients=(0,)):
    everyone = linear_clients(3)
    federation = run_federation(linear(3), everyone, rounds=5, lr=0.05, steering=Steering(rule, clients, rounds))
    return everyone, federation


def test_a_steered_client_reveals_its_own_optimum():
    everyone, federation = steered(ActiveAdam(lr=0.1), rounds=150)
    rebuilt = ActiveAdam(lr=0.1)(federation.observations[0], progress=False)
    assert distance(rebuilt, everyone[0]) < 0.02
    honest = watched(linear(3), everyone, rounds=155)[0]
    assert distance(LastReturned()(honest, progress=False), everyone[0]) > 0.2
    assert rebuilt.outcome.startswith("a malicious server steered the client for 150 rounds")


def test_isolation_is_training_alone():
    everyone, federation = steered(Isolation(), rounds=7)
    rounds = federation.observations[0]
    for before, after in pairwise(rounds):
        torch.testing.assert_close(flatten(after.sent), flatten(before.returned))
    alone = run_federation(linear(3), everyone, rounds=5, lr=0.05)
    model = alone.load_into(linear(3))
    own = run_federation(model, everyone[:1], rounds=7, lr=0.05)
    torch.testing.assert_close(flatten(own.weights), flatten(rounds[-1].returned))


def test_the_steps_are_those_of_torchs_adam():
    _, federation = steered(ActiveAdam(lr=0.01, betas=(0.8, 0.95)), rounds=6)
    rounds = federation.observations[0]
    weights = flatten(rounds[0].sent).clone().requires_grad_()
    optimiser = torch.optim.Adam([weights], lr=0.01, betas=(0.8, 0.95))
    for observation in rounds:
        torch.testing.assert_close(flatten(observation.sent), weights.detach())
        weights.grad = flatten(observation.difference())
        optimiser.step()
    rebuilt = ActiveAdam(lr=0.01, betas=(0.8, 0.95))(rounds, progress=False)
    torch.testing.assert_close(flatten(rebuilt.weights), weights.detach())


def test_the_threat_model_calls_the_server_malicious():
    _, federation = steered(ActiveAdam(), rounds=2)
    sentences = " ".join(federation.observations[0][0].threat_model())
    assert "a malicious server" in sentences
    assert "active_adam" in sentences
    assert "honest-but-curious" not in sentences
    assert ATTACKS["active_adam"].malicious
    assert "malicious" in ATTACKS["active_adam"].summary
    assert not ATTACKS["lmra"].malicious


def test_honest_rounds_are_refused_in_words():
    honest = watched(linear(3), linear_clients(3), rounds=3)[0]
    assert not ATTACKS["active_adam"].fits(honest[-1]).applies
    with pytest.raises(InvalidInput, match="needs rounds in which the server steered the client"):
        ActiveAdam()(honest, progress=False)


def test_rounds_of_another_rule_are_left_out():
    _, federation = steered(Isolation(), rounds=3)
    with pytest.raises(InvalidInput, match="active_adam needs rounds"):
        ActiveAdam()(federation.observations[0], progress=False)
    assert len(Messages.read(federation.observations[0])) == 3


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"lr": float("nan")}, {"betas": (0.9, 1.0)}])
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidInput):
        ActiveAdam(**options)
