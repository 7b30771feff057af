"""A Flower client that checks its model trains on honest weights, and does not train on planted ones."""

import logging

import pytest
import torch
from torch import nn

from leakgauge.attacks.malicious import TrapServer
from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining
from tests.federation.networks import same
from tests.federation.recording import test_flower
from tests.federation.recording.test_flower import DATA, average, client_app, run
from tests.shared import LazyModule

identity = test_flower.identity
checked = LazyModule("leakgauge.federation.recording.checked_flower")
malicious = LazyModule("leakgauge.federation.recording.malicious_flower")
recording = LazyModule("leakgauge.federation.recording.flower")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3))


def test_honest_weights_are_trained_on_and_every_client_gets_one_digest():
    guard = checked.ModelGuard(network(), DATA)
    weights = run(average(), client_app(network, mods=[guard.mod]), make=network)
    assert same(weights, run(average(), client_app(network), make=network))
    assert [one.refused for one in guard.results] == [False] * 6
    digests = [one.digest for one in guard.results]
    assert len(set(digests[:3])) == 1
    assert digests[0] != digests[3]


def test_planted_weights_are_not_trained_on_and_the_server_learns_no_reason(tmp_path, caplog):
    guard = checked.ModelGuard(network(), DATA)
    training = LocalTraining(lr=0.1, epochs=1, batch_size=4, samples=4)
    recorder = recording.Recorder(tmp_path, network(), DATA, config={"batch-size": 2, "local-epochs": 1})
    server = malicious.MaliciousServer(recorder, TrapServer(network(), DATA, training), client=1, after=1)
    with caplog.at_level(logging.WARNING, "leakgauge"):
        run(server.strategy(average(min_available_nodes=3)), client_app(network, mods=[guard.mod]), 3, make=network)
    assert sum(one.refused for one in guard.results) == 2
    assert not server.observations
    assert "does not train on the received model" in caplog.text
    assert "planted traps" in caplog.text


def test_other_messages_pass_and_odd_settings_are_refused():
    guard = checked.ModelGuard(network(), DATA, keep=2)
    state = network().state_dict()
    for _ in range(3):
        assert not guard.check({str(place): value for place, value in enumerate(state.values())}).refused
    assert len(guard.results) == 2
    assert guard.check({"0": torch.zeros(3)}).refused
    with pytest.raises(InvalidInput, match="agreed architecture"):
        checked.ModelGuard("network", DATA)
    with pytest.raises(InvalidInput, match="must be a DataSpec"):
        checked.ModelGuard(network(), (1, 4, 4))
