"""What a steered client could notice."""

import pytest

from leakgauge import run_federation
from leakgauge.attacks.local_model import ActiveAdam
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation.visibility import visibility
from leakgauge.federation.steering import Steering
from tests.attacks.local_model.cases import linear, linear_clients, watched


def test_the_loss_falls_below_that_of_an_honest_model_and_the_distance_grows():
    clients = linear_clients(3)
    federation = run_federation(linear(3), clients, rounds=20, lr=0.05, steering=Steering(ActiveAdam(lr=0.05), [0], 30))
    seen = visibility(federation.observations[0], federation.observations[0][0].sent, federation.truths[0])
    assert len(seen.rounds) == len(seen.losses) == len(seen.distances) == 30
    assert seen.losses[0] == pytest.approx(seen.honest_loss)
    assert seen.losses[-1] < 0.5 * seen.honest_loss
    assert seen.distances[0] == 0
    assert seen.distances[-1] > 0.1
    assert str(seen).startswith("In 30 steered rounds, the client's loss")


def test_honest_rounds_show_nothing():
    clients = linear_clients(3)
    rounds = watched(linear(3), clients, rounds=2)[0]
    truth = run_federation(linear(3), clients, rounds=1, lr=0.05, watch=[0]).truths[0]
    with pytest.raises(InvalidInput, match="no round was steered"):
        visibility(rounds, rounds[0].sent, truth)
