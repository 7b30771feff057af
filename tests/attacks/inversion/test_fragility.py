import pytest
import torch
from torch import nn

from leakgauge import models
from leakgauge.attacks import dlg, epafl, idlg
from leakgauge.attacks.inversion.fragility import SmoothOnly, first_layer_share, label_probability
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits


def client(model=None, rows=(0,), activation="sigmoid", **options):
    return fedsgd(
        model or models.lenet(shape=(1, 8, 8), activation=activation, seed=0), digits().share(list(rows)), **options
    )[0]


def test_there_is_nothing_to_say_about_what_the_papers_attack():
    assert SmoothOnly()(client()) == ""
    assert SmoothOnly()(client(rows=range(8))) == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "relu"}, "has ReLU, whose second derivative is"),
        ({"round": 12}, "its weights were trained for 12 rounds"),
        ({"rows": range(9)}, "9 samples share one gradient"),
    ],
    ids=["relu", "trained", "batch"],
)
def test_each_reason_is_named(options, words):
    assert words in SmoothOnly()(client(**options))


def test_several_reasons_are_one_sentence():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))
    assert SmoothOnly()(client(model, round=2)) == (
        "known to be fragile here, since the model has MaxPool2d and ReLU, whose second derivative is zero, "
        "and since its weights were trained for 2 rounds"
    )


def test_what_is_predicted_already_leaves_little_to_see():
    model = models.lenet(shape=(1, 8, 8), seed=0)
    with torch.no_grad():
        model.head.bias[int(digits().targets[0])] += 30
    assert "already gives the true labels a probability of 1.00" in SmoothOnly()(client(model))


def test_the_labels_probability_is_read_from_the_bias():
    model = models.lenet(shape=(1, 8, 8), seed=0)
    own = digits().share([5])
    expected = model(own.spec.normalise(own.inputs)).softmax(-1)[0, int(own.targets[0])].item()
    assert label_probability(fedsgd(model, own)[0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "observe",
    [
        lambda: fedavg(models.lenet(shape=(1, 8, 8), seed=0), digits().share([0]), lr=0.1)[0],
        lambda: client(nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))),
        lambda: client(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softplus(), nn.Linear(10, 20), nn.AdaptiveAvgPool1d(10))
        ),
    ],
    ids=["weights", "no bias", "another last layer"],
)
def test_where_it_cannot_be_read_nothing_is_said(observe):
    observation = observe()
    assert label_probability(observation) is None
    assert SmoothOnly()(observation) == ""


@pytest.mark.parametrize("factory", [dlg, idlg, epafl], ids=["dlg", "idlg", "epafl"])
def test_the_outcome_says_so_whatever_came_of_it(factory):
    relu = client(models.lenet(shape=(1, 8, 8), activation="relu", seed=0))
    result = factory(steps=1)(relu, progress=False)
    assert result.outcome.kind == "finished"
    assert str(result.outcome).startswith("used all 1 steps")
    assert "(known to be fragile here, since the model has ReLU" in str(result.outcome)
    assert "fragile" not in str(factory(steps=1)(client(), progress=False).outcome)


def test_a_gradient_that_has_vanished_before_the_first_layer_is_named():
    model = models.lenet(shape=(1, 8, 8), initialisation="default", seed=0)
    observation = client(model)
    assert 0 < first_layer_share(observation) < 1e-5
    assert "its first layer has only" in SmoothOnly()(observation)
    assert first_layer_share(client()) > 1e-4
    nothing = {name: torch.zeros_like(value) for name, value in observation.gradient.items()}
    assert first_layer_share(observation.knowing(gradient=nothing)) == 1
