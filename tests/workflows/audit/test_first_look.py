"""The first answer: reasons that are true of the message, and every attack judged."""

import pytest
from torch import nn

from leakgauge import data, models
from leakgauge.attacks import registry
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.workflows.audit import first_look
from tests.shared import digits


def network(name="lenet", **options):
    return models.build(name, shape=(1, 8, 8), classes=10, seed=0, **options)


def risks(screen):
    return {one.about: one.risk for one in screen.reasons}


def test_every_attack_is_judged():
    screen = first_look(fedsgd(network(), digits().share([0]))[0])
    names = {spec.name for spec in registry.specs(reads="update")}
    assert screen.applies.keys() | screen.refused.keys() == names
    assert not screen.applies.keys() & screen.refused.keys()


def test_one_gradient_of_one_sample_is_of_high_risk():
    screen = first_look(fedsgd(network(), digits().share([0]))[0])
    assert screen.risk == "high"
    assert "idlg" in screen.applies
    assert "dlf" in screen.refused
    assert "enough to determine them" in str(screen)


def test_local_training_is_for_other_attacks():
    screen = first_look(fedavg(network(), digits().share(range(4)), lr=0.1, epochs=2, batch_size=2)[0])
    assert "dlf" in screen.applies
    assert "idlg" in screen.refused
    assert "4 local steps" in str(screen)
    hidden = first_look(fedavg(network(), digits().share(range(4)), lr=0.1, hidden=["lr", "samples", "epochs"])[0])
    assert "learning rate" in hidden.refused["dlf"]
    assert risks(hidden)["size"] == risks(hidden)["steps"] == "medium"


def test_very_many_samples_are_of_low_risk():
    screen = first_look(fedsgd(network(), digits().share(range(300)))[0])
    assert risks(screen)["size"] == "low"
    assert screen.risk == "low"


def test_few_numbers_for_many_samples():
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert risks(first_look(fedsgd(small, digits().share(range(20)))[0]))["size"] == "medium"


@pytest.mark.parametrize(("samples", "words"), [(1, "the sample itself"), (3, "sums of samples")])
def test_a_linear_first_layer_copies_samples(samples, words):
    screen = first_look(fedsgd(network("mlp", hidden=[16]), digits().share(range(samples)))[0])
    assert risks(screen)["first layer"] == "high"
    assert words in str(screen)


def test_labels_are_readable_or_not():
    readable = first_look(fedsgd(network(), digits().share(range(4)))[0])
    assert "read off the last layer's bias" in str(readable)
    granted = first_look(fedsgd(network(), digits().share(range(4)), granted=["labels"])[0])
    assert "labels are granted" in str(granted)
    frozen = network()
    for parameter in list(frozen.parameters())[-2:]:
        parameter.requires_grad_(False)
    assert risks(first_look(fedsgd(frozen, digits().share(range(4)))[0]))["labels"] == "low"
    diabetes = data.load("diabetes").share(range(4))
    assert "targets are numbers" in str(first_look(fedsgd(nn.Linear(10, 1), diabetes)[0]))


def test_batch_norm_and_defences_are_seen():
    from leakgauge.federation.defences import GaussianNoise

    normed = models.resnet20(shape=(1, 8, 8), classes=10)
    assert "Batch norm in train mode" in str(first_look(fedsgd(normed, digits().share(range(4)))[0]))
    known, _ = fedsgd(network(), digits().share([0]), defences=GaussianNoise(0.1), knows_defence=True)
    assert "defends itself with GaussianNoise" in str(first_look(known))
