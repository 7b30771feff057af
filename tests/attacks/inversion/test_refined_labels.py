"""Label counts corrected by a simulation on a cheap reconstruction."""

import pytest
import torch

from leakgauge import models
from leakgauge.attacks import surrogate
from leakgauge.attacks.inversion.label_counts import estimate_label_counts
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.refined_labels import RefinedLabels
from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits

REFINED = RefinedLabels(surrogate(steps=15))


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def errors(labels, truth):
    return int((torch.bincount(labels, minlength=10) - truth.label_counts).abs().sum()) // 2


def update(client, bias=True, **recipe):
    model = models.lenet(shape=(1, 8, 8), classes=10, activation="relu", initialisation="default", seed=client)
    if not bias:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.requires_grad_(False)
    own = digits().share(range(20 * client, 20 * client + 20))
    return fedavg(model, own, **{"lr": 0.1, "epochs": 5, "batch_size": 5, "seed": client, **recipe})


@pytest.mark.parametrize("bias", [True, False])
def test_the_correction_makes_fewer_errors_than_what_it_corrects(bias):
    before = after = 0
    for client in range(4):
        observation, truth = update(client, bias, momentum=0.8)
        before += errors(REFINED.first(observation, draw()), truth)
        after += errors(REFINED(observation, draw()), truth)
    assert before >= (5 if bias else 1)
    assert after <= 0.75 * before


def test_counts_of_a_single_gradient_are_refined_too():
    observation, truth = fedsgd(
        models.lenet(shape=(1, 8, 8), classes=10, activation="relu", initialisation="default", seed=0),
        digits().share(range(20)),
    )
    assert errors(REFINED(observation, draw()), truth) <= errors(LastLayer()(observation, draw()), truth) + 1


def test_the_labels_of_one_sample_need_no_correction():
    observation, truth = fedsgd(models.lenet(shape=(1, 8, 8), classes=10, seed=0), digits().share([3]))
    assert REFINED(observation, draw()).tolist() == truth.targets.tolist()


def test_granted_labels_are_left_alone():
    observation, truth = update(0)
    granted = observation.knowing(label_counts=truth.label_counts)
    assert errors(REFINED(granted, draw()), truth) == 0


def test_the_same_generator_gives_the_same_labels():
    observation, _ = update(0)
    assert torch.equal(REFINED(observation, draw(1)), REFINED(observation, draw(1)))


def test_what_cannot_be_read_is_refused():
    observation, _ = update(0)
    with pytest.raises(MissingKnowledge, match="lr"):
        REFINED(observation.knowing(lr=None), draw())
    with pytest.raises(InvalidInput, match="rounds"):
        RefinedLabels(surrogate(), rounds=0)


def test_an_interrupt_is_not_taken_for_an_answer(monkeypatch):
    observation, _ = update(0)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("leakgauge.attacks.inversion.objectives._product", stop)
    with pytest.raises(KeyboardInterrupt):
        REFINED(observation, draw())
    assert estimate_label_counts(observation, draw()).sum() == 20
