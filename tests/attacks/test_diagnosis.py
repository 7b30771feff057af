"""Every cause of a failed attack, made to happen, and recognised from what the attacker sees."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import models
from leakgauge.attacks import registry
from leakgauge.attacks.diagnosis import NO_CAUSE, diagnose
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import GaussianNoise
from tests.shared import digits


def network(name="lenet", **options):
    return models.build(name, shape=(1, 8, 8), classes=10, seed=0, **options)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def dense(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def causes(observation, attack="inverting_gradients", **options):
    return " ".join(diagnose(observation, registry.build(attack, **options)(observation)))


def message(model=None, rows=range(2), **options):
    return fedsgd(model or network(), digits().share(rows), **options)[0]


class Overflow(nn.Module):
    """An activation that is finite for the client's pixels and infinite for those of an attack."""

    def forward(self, inputs):
        return inputs - 1 + torch.exp(1000 * (inputs - 1).clamp_min(0))


class Rounded(nn.Module):
    """An activation with a derivative of zero everywhere, for which every point is a local minimum."""

    def forward(self, inputs):
        return inputs.round()


def test_a_search_that_diverges():
    text = causes(message(dense(Overflow(), nn.Linear(64, 10)), [0]), "idlg", steps=5)
    assert "The search diverged" in text
    assert "smaller learning rate" in text


def test_an_exact_attack_that_confirms_nothing():
    text = causes(message(network("mlp", hidden=[32]), [0], defences=GaussianNoise(1.0)), "dense_read_off")
    assert "returns only samples that it can confirm" in text
    assert "the neurons do not agree" in text


def test_a_budget_that_is_too_small():
    observation = message(granted=["labels"])
    assert "The budget was too small: 3 steps" in causes(observation, steps=3)
    assert "The budget was too small: the loss fell by" in causes(observation, "dlg_simulation", steps=30, lr=0.01)
    assert "budget" not in causes(observation, steps=300)


def test_labels_that_contradict_the_last_layer():
    right, wrong = (message().knowing(labels=torch.tensor(labels)) for labels in ([0, 1], [7, 7]))
    assert "contradict the last layer" in causes(wrong, steps=30)
    assert "labels" not in causes(right, steps=30)


def test_labels_that_contradict_it_after_local_training():
    observation = fedavg(network(), digits().share(range(4)), lr=0.1, epochs=2, batch_size=2, granted=["labels"])[0]
    assert "contradict" not in causes(observation, "surrogate", steps=20)
    wrong = observation.knowing(labels=torch.full((4,), 9))
    assert "contradict the last layer" in causes(wrong, "surrogate", steps=20)


def test_labels_that_were_estimated():
    assert "labels were estimated" in causes(message(rows=range(4)), steps=30)
    assert "labels were estimated" not in causes(message(rows=range(4), granted=["labels"]), steps=30)


def test_gradients_that_vanish_before_the_first_layer():
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
    assert "The gradient vanishes" in causes(message(dense(*layers, nn.Linear(64, 10)), [0]), "idlg", steps=5)
    assert "vanishes" not in causes(message(rows=[0]), "idlg", steps=5)


def test_a_sample_that_the_model_already_predicts():
    model = dense(nn.Linear(64, 10))
    with torch.no_grad():
        model[1].bias[0] = 5.0  # the first digit is a zero
    assert "already predicts the label with a probability of 0.9" in causes(message(model, [0]), steps=30)
    assert "already predicts" not in causes(message(dense(nn.Linear(64, 10)), [0]), steps=30)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share_statistics": False}, "statistics of the client's batches, which the server does not see"),
        ({}, "Batch norm in train mode mixes the samples"),
        ({"mode": "eval"}, None),
    ],
)
def test_batch_norm(options, words):
    model = dense(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    text = causes(message(model, range(4), **options), steps=3)
    assert (words in text) if words else ("Batch norm" not in text)


def test_dropout():
    model = dense(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))
    assert "Dropout in train mode used random masks" in causes(message(model, [0]), steps=30)
    assert "Dropout" not in causes(message(model, [0], mode="eval"), steps=30)


def test_defences_known_and_unknown():
    noise = GaussianNoise(0.1)
    known = causes(message(defences=noise, knows_defence=True), steps=30)
    assert "defends itself with GaussianNoise" in known
    assert "of the update's squared length is noise" in known
    unknown = causes(message(defences=noise), steps=30)
    assert "more directions than the samples can cause" in unknown
    assert "local minimum" not in unknown
    assert "directions" not in causes(message(), steps=30)


class EveryPixelRow(nn.Module):
    """A model whose last layer sees eight rows for each sample."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 10)

    def forward(self, inputs):
        return self.head(inputs.flatten(0, 1)).tanh().sum(1)


def test_a_last_layer_that_sees_each_sample_often_is_no_sign_of_a_defence():
    assert "directions" not in causes(message(EveryPixelRow(), [0]), steps=3)


def test_samples_with_unequal_shares_do_not_contradict_their_labels():
    """The last batch of three samples has one sample, which counts twice."""
    data = digits().share([0, 10, 1])
    for options in ({"batch_size": 2}, {"batch_size": 1, "momentum": 0.9}):
        observation = fedavg(network(), data, lr=0.5, granted=["labels"], seed=1, **options)[0]
        assert "contradict" not in causes(observation, "surrogate", steps=3)


def test_several_samples_that_explain_the_message():
    """A linear model of 30 samples has fewer equations than unknowns."""
    observation = message(dense(nn.Linear(64, 10)), range(30), granted=["labels"])
    assert "Several samples explain the message" in causes(observation, steps=300, tv=0.0)
    assert "Several samples" not in causes(observation, steps=30, tv=1.0)


def test_a_local_minimum():
    """Rounded pixels have a derivative of zero, so that the search stays at its start on every machine."""
    text = causes(message(dense(Rounded(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10)), [0]), "idlg", steps=40)
    assert "The search ended in a local minimum" in text


def test_only_the_later_layers_are_matched():
    assert "matched the later layers only" in causes(message(granted=["labels"]), steps=60)


def test_an_interrupted_attack_and_an_update_of_zero():
    observation = message(rows=[0])
    result = registry.build("idlg", steps=2)(observation)
    interrupted = replace(result, outcome=Outcome("interrupted", 1, "interrupted"))
    assert "The attack was interrupted" in " ".join(diagnose(observation, interrupted))
    zero = {name: torch.zeros_like(value) for name, value in observation.gradient.items()}
    assert diagnose(observation.knowing(gradient=zero), result) == (
        "The update is zero, so no attack can recover anything from this message.",
    )


def test_no_cause_is_admitted():
    """A result without a trace, with granted labels and without defences, shows the attacker nothing."""
    observation = message(rows=[0], granted=["labels"])
    result = registry.build("idlg", steps=2)(observation)
    assert diagnose(observation, replace(result, trace=None)) == (NO_CAUSE,)
