"""Updates of several epochs: which samples recur is found, and they come back better than from one."""

from dataclasses import replace

import pytest
import torch

from leakgauge import models
from leakgauge.attacks import agic_epochs
from leakgauge.attacks.inversion.joint import Update, _problems
from leakgauge.attacks.inversion.update_models import FullSimulation, Surrogate
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.evaluation import pair, score
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits


def two_epochs(orders, batch=1, **settings):
    """The updates of a client whose epochs take its samples in these orders; the network learns in between."""
    model = models.build("lenet", shape=(1, 8, 8), classes=10, seed=0)
    own = digits().share(range(len(orders[0])))
    epochs = []
    for number, order in enumerate(orders):
        epoch = []
        for rows in torch.tensor(order).split(batch):
            part = own.share(rows)
            if settings:
                epoch.append(fedavg(model, part, seed=number, granted=["labels"], **settings)[0])
            else:
                epoch.append(fedsgd(model, part, seed=number, granted=["labels"])[0])
        with torch.no_grad():
            for name, value in model.named_parameters():
                value -= 0.05 * epoch[0].difference()[name] / epoch[0].difference()[name].norm().clamp_min(1)
        epochs.append(epoch)
    return epochs, own


def attack(first=30, steps=30, **options):
    return agic_epochs(beta=5.0, first_steps=first, steps=steps, **options)


@pytest.fixture(scope="module")
def single():
    """Four digits in batches of one, in another order in the second epoch."""
    epochs, own = two_epochs([[0, 1, 2, 3], [2, 0, 3, 1]])
    return epochs, own, attack()(epochs, progress=False)


def test_samples_that_recur_are_found(single):
    _, own, result = single
    assert result.places.tolist() == [[0, 1, 2, 3], [1, 3, 0, 2]]
    assert result.labels.tolist() == own.targets.tolist()


def test_two_epochs_give_more_than_each(single):
    _, own, result = single
    truth = own.inputs
    errors = [(samples - truth).square().mean().item() for samples in (result.samples, *result.epochs)]
    assert errors[0] < min(errors[1:])
    assert result.epochs.shape == (2, *truth.shape)
    assert torch.equal(result.epochs[1], result.alone[1][[1, 3, 0, 2]])


def test_the_same_seed_gives_the_same_bits(single):
    epochs, _, result = single
    again = attack()(epochs, progress=False)
    assert torch.equal(again.samples, result.samples)
    assert "JointInversion" in result.attack


def test_batches_may_overlap_in_any_way():
    """Batches of two that share one sample each: all are one problem, and each is one variable in it."""
    epochs, own = two_epochs([[0, 1, 2, 3], [1, 2, 3, 0]], batch=2)
    result = attack(first=80, steps=30, label_filter="sample")(epochs, progress=False)
    assert result.places.tolist() == [[0, 1, 2, 3], [3, 0, 1, 2]]
    rows = pair(result.samples, own.inputs).rows
    assert torch.equal(rows, torch.arange(4))


def test_fedavg_updates_and_gradients_may_be_mixed():
    weights, _ = two_epochs([[0, 1, 2, 3]], batch=2, lr=0.01, epochs=1, batch_size=1)
    gradients, _ = two_epochs([[2, 3, 0, 1]], batch=2)
    result = attack(label_filter="sample")([weights[0], gradients[0]], progress=False)
    assert len(result.samples) == 4
    assert result.places[1].tolist() == [2, 3, 0, 1]


def test_three_epochs_and_their_weights():
    epochs, _ = two_epochs([[0, 1], [1, 0], [0, 1]])
    result = attack()(epochs, progress=False)
    assert result.places.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert len(result.epochs) == 3


def test_samples_that_an_epoch_lacks_stay_with_the_updates_they_have():
    epochs, _ = two_epochs([[0, 1, 2, 3], [1, 3, 0, 2]])
    result = attack()([epochs[0], epochs[1][:2]], progress=False)
    assert result.places.tolist() == [[0, 1, 2, 3], [-1, 0, -1, 1]]
    assert result.epochs is None
    result = attack()([epochs[0][:2], epochs[1][:3]], progress=False)  # 0, 1 and 1, 3, 0
    assert result.places.tolist() == [[0, 1, -1], [2, 0, 1]]


def test_the_label_filter_decides_where_pictures_do_not():
    """Reconstructions of no step are noise: only their labels tell which is which."""
    epochs, _ = two_epochs([[0, 1, 2, 3], [3, 2, 1, 0]])
    found = attack(first=1, steps=1, label_filter="sample")(epochs, progress=False)
    assert found.places[1].tolist() == [3, 2, 1, 0]
    blind = attack(first=1, steps=1, label_filter="none")(epochs, progress=False)
    assert blind.places[1].tolist() != [3, 2, 1, 0]


def test_variables_of_the_update_model_belong_to_one_update():
    epochs, _ = two_epochs([[0, 1, 2, 3], [2, 3, 0, 1]], batch=2, lr=0.01, epochs=1, batch_size=1)
    joint = attack(label_filter="sample")
    joint = replace(joint, joint=joint.joint.with_settings(update_model=Surrogate()))
    assert joint(epochs, progress=False).places[1].tolist() == [2, 3, 0, 1]


def test_problems_are_samples_that_share_updates():
    zeros = torch.zeros(2, 1)
    updates = [Update(None, epoch, zeros, zeros[:, 0].long()) for epoch in (0, 0, 1, 1)]
    apart = _problems(updates, torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1]]))
    assert [(one.samples, [rows for _, rows in one.updates]) for one in apart] == [
        ([0, 1], [[0, 1], [0, 1]]),
        ([2, 3], [[0, 1], [0, 1]]),
    ]
    chained = _problems(updates, torch.tensor([[0, 1, 2, 3], [0, 2, 1, 3]]))
    assert [(one.samples, [rows for _, rows in one.updates]) for one in chained] == [
        ([0, 1, 2, 3], [[0, 1], [2, 3], [0, 2], [1, 3]])
    ]


@pytest.mark.parametrize("steps", [10, 45, 60])
def test_ctrl_c_keeps_what_there_is(steps):
    """In the first stage, between, and in the joint one."""
    epochs, _ = two_epochs([[0, 1], [1, 0]])
    seen = []

    def stop(step, total, loss):
        seen.append(step)
        if len(seen) == steps:
            raise KeyboardInterrupt

    result = attack(first=20, steps=30)(epochs, progress=stop)
    assert result.outcome.kind == "interrupted"
    assert result.samples.isfinite().all()
    assert len(result.samples) <= 2


def test_progress_is_counted_over_both_stages():
    epochs, _ = two_epochs([[0, 1], [1, 0]])
    seen = []
    attack(first=5, steps=7)(epochs, progress=lambda step, total, loss: seen.append((step, total)))
    steps = [step for step, _ in seen]
    assert steps == sorted(steps)
    assert {total for _, total in seen} == {4 * 5 + 4 * 7}


def test_it_scores_like_any_reconstruction(single):
    _, own, result = single
    _, truth = fedsgd(models.build("lenet", shape=(1, 8, 8), classes=10, seed=0), own)
    assert score(result, truth)["mse"].value < score(result, truth)["mse"].chance


def test_what_cannot_be_reconstructed_jointly_is_refused():
    epochs, _ = two_epochs([[0, 1], [1, 0]])
    with pytest.raises(InvalidInput, match="two epochs"):
        attack()(epochs[:1])
    with pytest.raises(InvalidInput, match="two epochs"):
        attack()([epochs[0], []])
    with pytest.raises(UnknownName, match="batch"):
        attack(label_filter="class")
    with pytest.raises(InvalidInput, match="weight of an epoch"):
        attack(gamma=0.0)
    own = attack(first=1, steps=1)
    fedavg_epochs, _ = two_epochs([[0, 1], [1, 0]], batch=2, lr=0.01, epochs=2, batch_size=1)
    own = replace(own, joint=own.joint.with_settings(update_model=FullSimulation(per_epoch=True)))
    with pytest.raises(InvalidInput, match="share their samples"):
        own(fedavg_epochs)
    other = replace(epochs[1][0], data=replace(epochs[1][0].data, std=(2.0,)))
    with pytest.raises(InvalidInput, match="one client"):
        attack()([epochs[0], [other]])
