"""One step of SGD with an unknown learning rate is a gradient of unknown length, and one sample shows the rate."""

import pytest
import torch
from torch import nn

from leakgauge import attacks, data, models
from leakgauge.attacks.registry import ATTACKS
from leakgauge.attacks.unknown_rate import as_direction, one_step_of_unknown_rate, threat_model, with_rate
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.params import flatten
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from tests.known_answers.networks import convolutional, one_logit

DIGITS = data.load("digits")


def network(classes=10):
    torch.manual_seed(0)
    return convolutional(shape=(1, 8, 8), classes=classes, activation="gelu")


def hidden(samples, *, lr=0.03, epochs=1, batch_size=None, model=None, **recipe):
    rows = DIGITS.share(range(samples))
    return fedavg(
        model or network(), rows, lr=lr, epochs=epochs, batch_size=batch_size or samples, hidden=["lr"],
        recipe=LocalTraining(**recipe),
    )  # fmt: skip


@pytest.mark.parametrize("lr", [0.3, 0.01, 1e-3])
@pytest.mark.parametrize("recipe", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_the_last_layer_shows_the_rate_of_one_sample(lr, recipe):
    observation, _ = hidden(1, lr=lr, **recipe)
    assert with_rate(observation).training.lr == pytest.approx(lr, rel=1e-3)
    assert f"{lr:.3g}" in threat_model(observation)[-1]


def test_one_logit_shows_it_too():
    torch.manual_seed(0)
    table = data.load("breast_cancer").share([3])
    observation, _ = fedavg(one_logit(shape=(30,)), table, lr=0.02, epochs=1, batch_size=1, hidden=["lr"])
    assert with_rate(observation).training.lr == pytest.approx(0.02, rel=1e-3)


def test_a_last_layer_that_does_not_show_it_is_not_believed():
    """The bias of a scaled output does not change as the formula says."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Flatten(), nn.Linear(64, 10)

        def forward(self, inputs):
            return 7 * self.head(self.body(inputs))

    observation, _ = hidden(1, model=Scaled())
    assert with_rate(observation) is observation


def test_the_direction_is_that_of_the_gradient():
    observation, _ = hidden(3)
    gradient, _ = fedsgd(network(), DIGITS.share(range(3)))
    direction = flatten(as_direction(observation).gradient)
    true = flatten(gradient.gradient)
    assert float(torch.nn.functional.cosine_similarity(direction, true, dim=0)) > 1 - 1e-6
    assert "the direction of the gradient" in threat_model(observation)[-1]


@pytest.mark.parametrize(
    "change", [{"epochs": 2}, {"batch_size": 2}, {"weight_decay": 0.1}, {"optimiser": "adam"}], ids=str
)
def test_other_messages_are_left_alone(change):
    observation, _ = hidden(4, **change)
    assert not one_step_of_unknown_rate(observation)
    assert with_rate(observation) is observation
    assert as_direction(observation) is observation
    assert not ATTACKS["prior_path"].fits(observation).applies
    with pytest.raises(MissingKnowledge, match="lr"):
        attacks.prior_path(steps=2)(observation, progress=False)


def test_attacks_on_directions_apply_to_several_samples_and_others_do_not():
    observation, _ = hidden(3)
    assert {name for name in ("prior_path", "inverting_gradients", "dlf", "surrogate", "dlg")
            if ATTACKS[name].fits(observation).applies} == {"prior_path", "inverting_gradients"}  # fmt: skip
    assert "unknown rate" in ATTACKS["prior_path"].fits(observation).reason


def test_all_attacks_apply_to_one_sample():
    observation, _ = hidden(1)
    for name in ("prior_path", "dlf", "surrogate"):
        assert "shows the unknown learning rate" in ATTACKS[name].fits(observation).reason


def test_matching_the_direction_returns_the_digits():
    observation, truth = hidden(2)
    result = attacks.inverting_gradients(steps=120)(observation, progress=False)
    assert score(result, truth)["psnr"].value > 22


def test_the_whole_message_is_solved_without_the_rate():
    model = models.lenet(shape=(1, 8, 8), activation="sigmoid", seed=0)
    observation, truth = hidden(1, model=model, lr=0.1)
    result = attacks.gauss_newton(starts=2)(observation, progress=False)
    assert score(result, truth)["psnr"].value > 60
