"""Algorithm 2 with dummy samples as the update map."""

import pytest
import torch

from leakgauge.attacks.local_model import Distilled, GlobalModel, LastReturned, Messages, distilled
from leakgauge.attacks.local_model.distilled import _held_out_rounds, _steps_for, _why_not
from leakgauge.attacks.local_model.dummies import Target
from leakgauge.attacks.local_model.messages import gradients_of
from leakgauge.core.params import flatten
from leakgauge.federation.local_only import least_squares_optimum, train_alone
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched

QUICK = {"samples": 16, "steps": 60, "training": 40}


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}], ids=["plain", "batch norm"])
def test_dummy_samples_lead_nearer_to_the_local_model(options):
    clients = table_clients(rows=60)
    model = network(**options)
    rounds = watched(model, clients, rounds=30, lr=0.2)[0]
    alone = train_alone(model, clients[0], lr=0.2, epochs=300)

    def loss(found):
        return float(found.losses(clients[0].inputs, clients[0].targets).mean())

    found = Distilled(**QUICK)(rounds)
    assert loss(found) < loss(GlobalModel()(rounds))
    assert 0 < found.figures["held_out_error"] < 1
    assert found.figures["steps"] > 0
    assert alone.losses[-1] < loss(found)


def test_samples_that_explain_nothing_leave_the_last_model_as_it_is():
    rounds = watched(network(), table_clients(), rounds=12)[0]
    found = Distilled(samples=2, steps=1, lr=100.0, training=5)(rounds)
    assert found.figures["held_out_error"] >= 0.999
    assert "the last model known" in found.outcome
    assert torch.equal(flatten(found.weights), flatten(LastReturned()(rounds).weights))


def test_the_same_seed_gives_the_same_model():
    rounds = watched(network(), table_clients(), rounds=12)[0]
    tiny = Distilled(samples=6, steps=5, training=5)
    first, second, other = (tiny(rounds, seed=seed).weights for seed in (0, 0, 1))
    assert torch.equal(flatten(first), flatten(second))
    assert not torch.equal(flatten(first), flatten(other))


def test_regressions_are_distilled_too():
    clients = linear_clients(4)
    rounds = watched(linear(4), clients, rounds=30, epochs=2)[0]
    optimum = flatten(least_squares_optimum(clients[0], bias=True))
    found = Distilled(samples=24, steps=150, training=100, training_lr=0.05)(rounds)
    assert (flatten(found.weights) - optimum).norm() < (flatten(LastReturned()(rounds).weights) - optimum).norm()


def test_the_training_of_a_regression_stops_at_a_share_of_the_improvement():
    course = torch.tensor([10.0, 7.0, 5.5, 4.0, 2.0, 3.0])
    assert [_steps_for(course, share) for share in (0.0, 0.3, 0.5, 0.7, 1.0)] == [0, 1, 2, 3, 4]
    assert _steps_for(torch.tensor([1.0, 2.0, 3.0]), 0.5) == 0
    assert _steps_for(torch.tensor([1.0, 1.0]), 0.5) == 0
    assert _steps_for(torch.tensor([float("inf"), 2.0, 1.0]), 0.5) == 2


def test_the_clients_own_records_explain_held_out_rounds_and_wrong_labels_do_not():
    client, *others = table_clients(clients=4, rows=60)
    rounds = watched(network(), [client, *others], rounds=30, lr=0.1, momentum=0.5, epochs=3)[0]
    messages = Messages.read(rounds)
    target, held_out = Target(messages), torch.arange(30) % 5 == 4
    figures = {}
    for name, labels in (("own", client.targets), ("wrong", 1 - client.targets)):
        batch = (client.spec.normalise(client.inputs), torch.nn.functional.one_hot(labels, 2).float())
        error = float(target.errors(held_out.nonzero().flatten(), batch).sqrt().median())
        figures[name] = _held_out_rounds(target, messages, [batch, batch], held_out, error)
    assert figures["own"]["explained"] > 0.8
    assert figures["own"]["decrease"] == pytest.approx(1, abs=0.2)
    assert figures["wrong"]["explained"] < 0
    assert figures["wrong"]["decrease"] < 0


def test_a_training_that_held_out_rounds_contradict_leaves_the_last_model_as_it_is(monkeypatch):
    rounds = watched(network(), table_clients(), rounds=12)[0]
    monkeypatch.setattr(distilled, "_held_out_rounds", lambda *_: {"explained": 0.9, "decrease": 0.1})
    found = Distilled(samples=6, steps=5, training=5)(rounds)
    assert "by 10% of what they should, so the result is the last model known" in found.outcome
    assert torch.equal(flatten(found.weights), flatten(LastReturned()(rounds).weights))


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"steps": 0.0, "disagreement": 0.0, "explained": 0.0}, ""),
        ({"steps": 9.0, "disagreement": 0.1}, ""),
        ({"steps": 9.0, "disagreement": 0.1, "explained": 0.9, "decrease": 0.9}, ""),
        ({"steps": 9.0, "disagreement": 0.4}, "differ by 40%"),
        ({"steps": 9.0, "disagreement": 0.1, "explained": 0.2, "decrease": 0.9}, "explain 20%"),
        ({"steps": 9.0, "disagreement": 0.1, "explained": 0.9, "decrease": -0.1}, "by -10%"),
    ],
)
def test_reasons_to_keep_the_last_model(figures, words):
    reason = _why_not(figures)
    assert words in reason
    assert bool(reason) == bool(words)


def test_momentum_lengthens_the_steps_of_a_round():
    clients = linear_clients(4)
    slow = watched(linear(4), clients, rounds=1, lr=1e-4, momentum=0.9, epochs=10)[0]
    mean = gradients_of(Messages.read(slow))[0][0]
    plain = watched(linear(4), clients, rounds=1, lr=1e-4)[0]
    torch.testing.assert_close(mean, gradients_of(Messages.read(plain))[0][0], rtol=2e-2, atol=1e-3)
