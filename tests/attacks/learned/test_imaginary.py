import pytest
import torch

from leakgauge.attacks.learned.imaginary import cast, class_means, folds_for, ranks_of, rehearse
from leakgauge.core.errors import InvalidInput
from leakgauge.core.public_data import PublicData


def public(count=100, classes=4, rehearse=None):
    draw = torch.Generator().manual_seed(0)
    return PublicData(
        torch.rand(count, 1, 3, 3, generator=draw),
        torch.randint(classes, (count,), generator=draw),
        rehearse or (lambda samples, targets, seed: {"weight": samples.sum(0)}),
    )


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1, 1, 3])])
def test_no_sample_is_in_two_folds(labels):
    own = public()
    clients = cast(own, 50, 4, labels, ranks_of(own, 4), seed=1)
    used = [set(clients.rows[clients.folds == fold].flatten().tolist()) for fold in range(5)]
    assert len(clients) == 50
    assert not any(used[one] & used[other] for one in range(5) for other in range(one))
    assert all(len(set(rows)) == 4 for rows in clients.rows.tolist())


def test_known_labels_are_given_to_all_clients():
    own, labels = public(), torch.tensor([0, 1, 1, 3])
    clients = cast(own, 50, 4, labels, ranks_of(own, 4), seed=1)
    assert (clients.targets == labels).all()
    assert (own.targets[clients.rows] == labels).all()


def test_a_class_without_samples_is_filled_with_others():
    own, labels = public(classes=3), torch.tensor([0, 3, 3])
    clients = cast(own, 20, 3, labels, ranks_of(own, 4), seed=1)
    assert (clients.targets == labels).all()
    assert (own.targets[clients.rows][:, 0] == 0).all()


def test_samples_come_by_label_and_then_in_one_order():
    own = public()
    ranks = ranks_of(own, 4)
    clients = cast(own, 50, 4, None, ranks, seed=1)
    assert (clients.targets.diff(dim=1) >= 0).all()
    assert (ranks[clients.rows].diff(dim=1) > 0).all()


def test_each_sample_alone_is_one_client():
    own = public(57)
    clients = cast(own, 1000, 1, None, ranks_of(own, 4), seed=1)
    assert sorted(clients.rows.flatten().tolist()) == list(range(57))


def test_means_of_classes_lean_to_the_mean_of_all():
    own = public(60, classes=3)
    means = class_means(own, 4)
    assert torch.allclose(means[3], own.samples.flatten(1).mean(0))
    inside = own.samples[own.targets == 1].flatten(1)
    assert (means[1] - inside.mean(0)).abs().max() < 0.05


def test_too_few_samples_make_no_folds():
    assert [folds_for(count, 8) for count in (39, 40, 100)] == [0, 5, 5]
    assert [folds_for(count, 50) for count in (99, 100, 250)] == [0, 2, 5]


def test_messages_that_are_not_finite_are_left_out():
    own = public(rehearse=lambda samples, targets, seed: {"weight": samples[0] / (samples[0, 0, 0, 0] > 0.3)})
    clients = cast(own, 100, 1, None, ranks_of(own, 4), seed=1)
    done = rehearse(own, clients, 0, None, lambda number: None)
    assert len(done.clients) == len(done.messages) < 100
    assert torch.isfinite(done.messages).all()
    broken = public(rehearse=lambda samples, targets, seed: {"weight": samples[0] / 0})
    with pytest.raises(InvalidInput, match="diverges"):
        rehearse(broken, clients, 0, None, lambda number: None)
