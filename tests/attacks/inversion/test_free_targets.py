"""Targets that are optimised beside the samples, for every kind of head."""

import pytest
import torch
import torch.nn.functional as F

from leakgauge.attacks.inversion.free_targets import (
    FreeTargets,
    as_simulated,
    free_targets,
    head_for,
    unknown_targets,
    with_logits,
)
from leakgauge.attacks.inversion.heads import Classes, Numbers, OneHot, Places, YesNo
from leakgauge.attacks.papers.dlf import dlf
from leakgauge.attacks.papers.inverting_gradients import inverting_gradients
from leakgauge.attacks.papers.lbfgs_simulation import lbfgs_simulation
from leakgauge.attacks.papers.prior_path import prior_path
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.seeding import generator
from leakgauge.data.dataset import Dataset
from leakgauge.evaluation.score import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.losses import LOSSES, SMOOTHED
from tests.known_answers.networks import convolutional, unet
from tests.known_answers.populations import labelled_digits


def network(kind, **options):
    torch.manual_seed(0)
    spec = labelled_digits(targets=kind).spec
    factory = unet if len(spec.target_shape) == 2 else convolutional
    return factory(shape=spec.shape, classes=spec.outputs, **{"activation": "gelu", **options})


def message(kind, samples=1, first=0, **options):
    return fedsgd(network(kind), labelled_digits(targets=kind).share(range(first, first + samples)), **options)


def rows_with_one(outputs, targets):
    return F.cross_entropy(outputs, targets)


def whole_numbers_only(outputs, targets):
    return F.cross_entropy(outputs, F.one_hot(targets, 3).movedim(-1, 1).to(outputs.dtype))


def rounded(outputs, targets):
    return F.binary_cross_entropy_with_logits(outputs, targets.long().to(outputs.dtype))


@pytest.mark.parametrize(
    ("kind", "options", "head"),
    [
        ("labels", {}, YesNo((5,))),
        ("labels", {"loss": F.binary_cross_entropy_with_logits}, YesNo((5,))),
        ("labels", {"loss": "cross_entropy"}, OneHot(5)),
        ("mask", {"loss": "binary_cross_entropy"}, YesNo((8, 8))),
        ("places", {}, Places(3, (8, 8))),
        ("places", {"loss": rows_with_one}, Places(3, (8, 8))),
    ],
)
def test_the_loss_decides_which_kind_of_targets_is_optimised(kind, options, head):
    observation, _ = message(kind, **options)
    assert unknown_targets(observation)
    assert head_for(observation) == head


@pytest.mark.parametrize("loss", ["mse", "l1", "huber", F.mse_loss])
def test_targets_without_values_are_numbers(loss):
    head = head_for(message("numbers", loss=loss)[0])
    assert isinstance(head, Numbers)
    assert head.shape == (2,)


@pytest.mark.parametrize(("kind", "loss"), [("places", whole_numbers_only), ("labels", rounded)])
def test_a_loss_that_cannot_be_differentiated_in_its_targets_is_refused(kind, loss):
    observation, truth = message(kind, loss=loss)
    assert head_for(observation) is None
    with pytest.raises(MissingKnowledge, match="targets cannot be optimised"):
        inverting_gradients(steps=1)(observation)
    assert inverting_gradients(steps=1)(observation.knowing(labels=truth.targets)).labels.shape == truth.targets.shape


def test_given_targets_and_classes_are_not_optimised():
    observation, truth = message("numbers", granted=["labels"])
    assert free_targets(observation, generator(0)) is None
    assert torch.equal(inverting_gradients(steps=1)(observation).labels, truth.targets)


def test_logits_of_classes_are_free_and_other_targets_are_as_given():
    spec = DataSpec((1, 8, 8), 4)
    logits = torch.randn(3, 4)
    free = with_logits(logits, spec)
    assert isinstance(free, FreeTargets)
    assert free.head == Classes(4)
    labels = torch.tensor([0, 1, 2])
    assert with_logits(labels, spec) is labels
    assert with_logits(free, spec) is free


@pytest.mark.parametrize("first", [0, 4, 9])
def test_the_message_of_one_sample_shows_its_labels_before_any_step(first):
    """The gradient of the last bias is negative at the labels that the sample has."""
    observation, truth = message("labels", first=first)
    free = free_targets(observation, generator(0))
    assert torch.equal(free.head.decided(free.start), truth.targets)


@pytest.mark.parametrize("loss", ["mse", "huber", "l1"])
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e5])
def test_the_start_is_on_the_right_side_of_the_prediction_at_every_size(loss, size):
    digits = labelled_digits(targets="numbers")
    signs = torch.tensor([1.0, -1.0])
    data = Dataset(digits.inputs, size * signs * digits.targets, digits.spec)
    observation, truth = fedsgd(network("numbers"), data.share(range(1)), loss=loss)
    free = free_targets(observation, generator(0))
    start = free.head.targets(free.start)
    if size >= 1:
        assert torch.equal(start.sign(), truth.targets.sign())
    if loss == "mse":
        torch.testing.assert_close(start, truth.targets, rtol=1.0, atol=0.3)


def test_the_mean_target_of_a_batch_is_read_off_a_local_step():
    digits = labelled_digits(targets="numbers")
    data = digits.share(range(6))
    observation, truth = fedavg(network("numbers"), data, lr=1e-4, epochs=2, batch_size=6)
    free = free_targets(observation, generator(0))
    torch.testing.assert_close(free.head.centre, truth.targets.mean(0, keepdim=True), rtol=0.2, atol=0.5)


@pytest.mark.parametrize("loss", ["l1", "huber"])
def test_smooth_losses_have_nearly_the_same_derivatives_and_depend_on_the_targets(loss):
    outputs = torch.linspace(-3, 3, 7, dtype=torch.double).reshape(7, 1).requires_grad_()
    targets = torch.full((7, 1), 0.4, dtype=torch.double, requires_grad=True)
    slopes = []
    for function in (LOSSES[loss], SMOOTHED[f"{loss} (smoothed)"]):
        (slope,) = torch.autograd.grad(function(outputs, targets), outputs, create_graph=True)
        slopes.append(slope)
    assert F.cosine_similarity(slopes[0], slopes[1], dim=0) > 0.97
    (second,) = torch.autograd.grad(slopes[1].square().sum(), targets)
    assert (second != 0).all()


def test_only_losses_with_flat_derivatives_are_replaced():
    observation, _ = message("numbers", loss="l1")
    assert as_simulated(observation).training.loss == "l1 (smoothed)"
    other, _ = message("numbers")
    assert as_simulated(other) is other


ATTACKS = {
    "inverting_gradients": inverting_gradients(steps=120),
    "prior_path": prior_path(steps=150),
    "lbfgs_simulation": lbfgs_simulation(),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_attacks_need_no_grant(attack, kind):
    observation, truth = message(kind, first=3)
    result = attack(observation)
    measures = score(result, truth)
    assert measures["psnr"].value > measures["psnr"].chance + 5
    assert result.labels.shape == truth.targets.shape
    if kind == "labels":
        assert measures["target_error"].value == 0


def test_a_warm_start_hands_its_targets_on():
    data = labelled_digits(targets="labels").share(range(2))
    observation, truth = fedavg(network("labels"), data, lr=0.01, epochs=2, batch_size=1)
    result = dlf(steps=4, warm_steps=80, label_steps=1)(observation)
    assert result.labels.shape == truth.targets.shape
    assert set(result.labels.unique().tolist()) <= {0.0, 1.0}
    assert score(result, truth)["target_error"].value < 0.5


def test_restarts_start_from_other_targets():
    observation, _ = message("numbers", samples=2)
    attack = inverting_gradients(steps=1, restarts=3)
    starts = attack._label_starts(observation, attack.targets(observation, generator(0)), seed=0)
    assert len(starts) == 3
    assert not torch.equal(starts[0], starts[1])


def test_clients_with_unknown_numbers_are_attacked_one_by_one():
    """The centre and the scale of the numbers belong to one client."""
    messages = [message("numbers", first=first)[0] for first in (0, 5)]
    attack = inverting_gradients(steps=5)
    for alone, together in zip(messages, attack.each(messages), strict=True):
        assert together.labels.shape == attack(alone).labels.shape
