import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks.inversion.soft_labels import SoftLabels, is_soft
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedsgd
from tests.shared import digits


def client(**options):
    return fedsgd(models.lenet(shape=(1, 8, 8), seed=0).double(), digits().share(range(3)), **options)


def test_they_start_as_logits_from_the_generator_in_the_models_type():
    observation, _ = client()
    one, same, other = (SoftLabels()(observation, generator(seed)) for seed in (0, 0, 1))
    assert one.shape == (3, 10)
    assert one.dtype == torch.double
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert is_soft(one, observation.data)


@pytest.mark.parametrize("grant", ["labels", "label_counts"])
def test_granted_labels_are_not_optimised(grant):
    observation, truth = client(granted=[grant])
    labels = SoftLabels()(observation, generator(0))
    assert sorted(labels.tolist()) == sorted(truth.targets.tolist())
    assert not is_soft(labels, observation.data)


def test_a_regression_is_refused_and_its_granted_targets_are_no_logits():
    table = data.load("diabetes").share(range(3))
    model = models.mlp(shape=table.spec.shape, classes=1, hidden=(8,), seed=0)
    observation, truth = fedsgd(model, table)
    with pytest.raises(MissingKnowledge, match=r"only be optimised for classification with cross-entropy. Grant them"):
        SoftLabels()(observation, generator(0))
    known = observation.knowing(labels=truth.targets)
    assert not is_soft(SoftLabels()(known, generator(0)), known.data)
