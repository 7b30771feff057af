"""Rounds of a malicious server inside a federation."""

import pytest
import torch

from leakgauge import defences, load_all, run_federation, save_all
from leakgauge.attacks.local_model import Isolation
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from leakgauge.federation.steering import Steering
from tests.attacks.local_model.cases import linear, linear_clients


def run(steering, **options):
    return run_federation(linear(3), linear_clients(3, clients=4), rounds=4, lr=0.05, steering=steering, **options)


def test_the_other_clients_go_on_without_the_steered_one():
    federation = run(Steering(Isolation(), [2], rounds=3), watch=[0])
    honest = run_federation(linear(3), linear_clients(3, clients=4), rounds=4, lr=0.05).load_into(linear(3))
    others = [client for number, client in enumerate(linear_clients(3, clients=4)) if number != 2]
    expected = run_federation(honest, others, rounds=3, lr=0.05)
    torch.testing.assert_close(flatten(federation.weights), flatten(expected.weights))
    assert federation.rounds == 7
    assert [one.round for one in federation.observations[0]] == list(range(7))
    assert all(not one.steered for one in federation.observations[0])
    assert [(one.round, one.steered) for one in federation.observations[2]] == [(n, "isolation") for n in (4, 5, 6)]
    assert set(federation.truths) == {0, 2}


def test_every_client_can_be_steered_at_once():
    federation = run(Steering(Isolation(), range(4), rounds=2))
    alone = run(Steering(Isolation(), [1], rounds=2))
    for together, single in zip(federation.observations[1], alone.observations[1], strict=True):
        torch.testing.assert_close(flatten(together.returned), flatten(single.returned))
    assert federation.rounds == 6


def test_a_file_keeps_the_name_of_the_rule(tmp_path):
    federation = run(Steering(Isolation(), [0], rounds=1), watch=[0])
    model = linear(3)
    save_all(federation.observations[0], tmp_path)
    assert [one.steered for one in load_all(tmp_path, model)] == ["", "", "", "", "isolation"]


def test_clients_that_compare_the_weights_refuse_to_train():
    federation = run(Steering(Isolation(), [1], rounds=3), defences=defences.SameModel())
    # The first steered round still sends the honest weights.
    assert [one.round for one in federation.observations[1]] == [4]
    assert federation.refused == {
        1: [f"round {n}: 3 of 3 other clients got other weights than this client" for n in (5, 6)]
    }


def test_an_honest_server_causes_no_alarm():
    federation = run(None, defences=defences.SameModel())
    assert federation.refused == {}
    weights = federation.weights
    assert defences.SameModel().refuses(weights, [dict(weights)] * 3) == ""


@pytest.mark.parametrize(
    ("steering", "words"),
    [
        (Steering(Isolation(), [4]), "client 4 cannot be steered. The clients are 0 to 3"),
        (Steering(Isolation(), []), "at least one client"),
        (Steering(Isolation(), [0], rounds=0), "at least 1 round"),
    ],
)
def test_steering_that_cannot_work_is_refused(steering, words):
    with pytest.raises(InvalidInput, match=words):
        run(steering)


def test_a_server_that_gets_only_a_sum_cannot_steer():
    with pytest.raises(InvalidInput, match="only the sum of all messages"):
        run(Steering(Isolation()), defences=defences.SecureAggregation(4))
