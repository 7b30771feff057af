"""The cost of an inversion before it runs, and cheaper or more thorough versions of it."""

from types import SimpleNamespace

import pytest
import torch

import leakgauge as lg
from leakgauge.attacks.inversion import cost
from leakgauge.attacks.inversion.cost import forecast, scaled
from leakgauge.attacks.inversion.stopping import MaxSteps


@pytest.fixture(scope="module")
def message():
    clients = lg.data.iid(lg.data.load("digits"), clients=100, seed=0)
    model = lg.models.build("lenet", shape=[1, 8, 8], classes=10, seed=0)
    return lg.fedavg(model, clients[0].share(range(4)), lr=0.05, epochs=2, batch_size=2)[0]


def test_the_forecast_grows_with_everything_that_costs(message):
    plain = lg.attacks.inverting_gradients(steps=100)
    assert forecast(plain, message) > 0
    more = [
        plain.with_settings(stop=MaxSteps(2000)),
        plain.with_settings(restarts=20),
        plain.with_settings(retries=19),
        lg.attacks.dlf(steps=100, warm_steps=3000, label_steps=1),
    ]
    for attack in more:
        assert forecast(attack, message) > 3 * forecast(plain, message)


def test_the_forecast_bounds_the_time_that_an_attack_takes(message):
    attack = lg.attacks.inverting_gradients(steps=60)
    seconds = min(attack(message, progress=False).seconds for _ in range(2))
    assert seconds < 20 * attack.forecast(message)  # the order of magnitude, on a busy machine too


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("cross_entropy", 2 * 1000 / 250), ("mse", 10)],  # parts of the dummies at two places, and one part for each class
)
def test_the_forecast_counts_the_dummies_from_which_labels_are_inferred(loss, expected, message, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def slow(original):
        def called(*given):
            clock[0] += 1
            return original(*given)

        return called

    for name in ("dummy_statistics", "gradients_of_classes"):
        monkeypatch.setattr(cost, name, slow(getattr(cost, name)))
    if loss != "cross_entropy":
        monkeypatch.setattr(cost, "has_formula", lambda observation: False)
    attack = lg.attacks.inverting_gradients(steps=1)
    assert forecast(attack, message) == expected
    assert forecast(attack, message.knowing(label_counts=torch.tensor([4] + 9 * [0]))) == 0


def test_the_forecast_changes_no_result(message):
    attack = lg.attacks.inverting_gradients(steps=3)
    before = attack(message, seed=1, progress=False).samples
    attack.forecast(message)
    assert before.equal(attack(message, seed=1, progress=False).samples)


def test_a_cheaper_version_gives_up_retries_before_steps():
    attack = lg.attacks.epafl(retries=3, steps=300)
    half = scaled(attack, 0.5)
    assert half.effort.attempts == 2
    assert half.descent.steps == 300
    eighth = scaled(attack, 0.125)
    assert eighth.effort.attempts == 1
    assert eighth.descent.steps == 150
    assert scaled(attack, 1.0) == attack


def test_a_warm_start_is_scaled_too_and_grows_no_further():
    attack = lg.attacks.dlf(steps=80, warm_steps=100)
    assert scaled(attack, 0.5).space.start.inversion.descent.steps == 50
    assert scaled(attack, 0.5).descent.steps == 40
    assert scaled(attack, 2.0).space.start.inversion.descent.steps == 100
    assert scaled(attack, 2.0).descent.steps == 160


def test_an_attack_without_steps_stays_as_it_is(message):
    attack = lg.attacks.dense_read_off()
    assert attack.scaled(0.1) == attack
    assert attack.forecast(message) is None
