"""Labels for losses and last layers without a formula, from the gradients that each label causes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks.inversion.label_counts import estimate_label_counts
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.probed_labels import infer_label_counts, probed_label_counts
from leakgauge.attacks.inversion.refined_labels import RefinedLabels
from leakgauge.attacks.papers.dlf import surrogate
from leakgauge.attacks.papers.prior_path import prior_path
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.losses import named_loss
from tests.attacks.inversion.label_cases import half_the_errors, normalised
from tests.shared import digits


def multi_label(outputs, targets):
    return F.binary_cross_entropy_with_logits(outputs, F.one_hot(targets, 10).to(outputs.dtype))


def weighted(outputs, targets):
    return F.cross_entropy(outputs, targets, weight=torch.linspace(0.2, 3.0, 10, dtype=outputs.dtype))


def focal(outputs, targets):
    chosen = F.log_softmax(outputs, 1).gather(1, targets[:, None])
    return (-((1 - chosen.exp()) ** 2) * chosen).mean()


def margin(outputs, targets):
    return F.multi_margin_loss(outputs, targets)


def rebuilding(model, inputs, targets):
    return F.mse_loss(model(inputs), inputs.flatten(1)[:, :10])


def small(frozen=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 10))
    for parameter in model[-1].parameters():
        parameter.requires_grad_(not frozen)
    return model


@pytest.mark.parametrize("loss", [multi_label, weighted, focal, margin])
def test_own_losses(loss):
    observation, truth = fedsgd(small(), digits().share(range(6)), loss=loss)
    assert half_the_errors(infer_label_counts(observation, generator(0)), truth) <= 1


def test_a_frozen_last_layer():
    right = []
    for row in range(10):
        observation, truth = fedsgd(small(frozen=True), digits().share([row]))
        right.append(int(infer_label_counts(observation, generator(0)).argmax()) == int(truth.targets[0]))
    assert sum(right) >= 8


def test_local_training_with_an_own_loss():
    observation, truth = fedavg(small(), normalised(range(8)), lr=0.01, epochs=2, batch_size=4, loss=focal)
    assert half_the_errors(infer_label_counts(observation, generator(0)), truth) <= 2


def test_it_agrees_with_the_formula_where_there_is_one():
    observation, _ = fedsgd(small(), digits().share(range(6)))
    formula = estimate_label_counts(observation, generator(0))
    assert torch.equal(infer_label_counts(observation, generator(0)), formula)
    assert int((probed_label_counts(observation, generator(0)) - formula).abs().sum()) <= 2


def test_a_loss_that_ignores_the_labels_gets_any():
    observation, _ = fedsgd(small(), digits().share(range(6)), loss=rebuilding)
    assert int(infer_label_counts(observation, generator(0)).sum()) == 6


def test_where_nothing_can_be_tried_the_error_says_so():
    observation, _ = fedsgd(small(), digits().share(range(4)), loss=weighted)
    with pytest.raises(MissingKnowledge, match="cross-entropy"):
        infer_label_counts(observation, generator(0), read="bias")

    def broken(outputs, targets):
        raise RuntimeError("no dummies here")

    with pytest.raises(MissingKnowledge, match="the loss fails for random samples"):
        probed_label_counts(observation.knowing(loss=named_loss(broken)), generator(0))


def test_sources_of_labels_use_it():
    observation, truth = fedsgd(small(), digits().share(range(3)), loss=focal)
    expected = torch.repeat_interleave(torch.arange(10), infer_label_counts(observation, generator(0)))
    assert torch.equal(LastLayer()(observation, generator(0)), expected)
    refined = RefinedLabels(surrogate(steps=3))(observation, generator(0))
    assert len(refined) == 3
    assert half_the_errors(torch.bincount(refined, minlength=10), truth) <= 1


def test_zeros_of_a_frozen_layer_are_no_pruning():
    observation, _ = fedsgd(small(frozen=True), digits().share([4]))
    result = prior_path(steps=4)(observation)
    assert result.labels.tolist() == infer_label_counts(observation, generator(0)).nonzero().flatten().tolist()
