"""Sources of labels, granted and inferred."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import data, models
from leakgauge.attacks.inversion.labels import Granted, LastLayer, MostNegative, rows_of_first_epoch
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.inversion.label_cases import network
from tests.shared import digits


@pytest.mark.parametrize("row", range(0, 30, 3))
@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_the_label_of_one_sample_is_exact(row, activation):
    observation, truth = fedsgd(network(activation=activation), digits().share([row]))
    assert LastLayer()(observation, generator(0)).tolist() == truth.targets.tolist()


def test_the_label_of_one_sample_survives_local_training():
    observation, truth = fedavg(network(), digits().share([7]), lr=0.01, epochs=5)
    assert LastLayer()(observation, generator(0)).tolist() == truth.targets.tolist()


def test_inferred_labels_are_those_of_the_counts_in_order():
    observation, truth = fedsgd(network(), digits().share([3, 3, 5, 1]))
    labels = LastLayer()(observation, generator(0))
    assert labels.tolist() == sorted(truth.targets.tolist())
    assert labels.dtype == torch.long


@pytest.mark.parametrize("source", [Granted(), LastLayer(), MostNegative()], ids=repr)
def test_granted_labels_are_taken_as_they_are(source):
    observation, truth = fedsgd(network(), digits().share([8, 2, 5]), granted=["labels"])
    assert source(observation, generator(0)).tolist() == truth.targets.tolist()


@pytest.mark.parametrize("source", [Granted(), LastLayer()], ids=repr)
def test_granted_counts_are_spelled_out(source):
    observation, truth = fedsgd(network(), digits().share([8, 2, 5, 8]), granted=["label_counts"])
    assert source(observation, generator(0)).tolist() == sorted(truth.targets.tolist())


@pytest.mark.parametrize("source", [Granted(), LastLayer(), LastLayer(shuffle=True)], ids=repr)
def test_granted_batches_are_every_epochs_labels_in_the_order_trained_on(source):
    observation, truth = fedavg(
        network(), digits().share(range(7)), lr=0.01, epochs=3, batch_size=3, granted=["label_batches", "label_counts"]
    )
    labels = source(observation, generator(0))
    assert torch.equal(labels, truth.targets[torch.cat(truth.order)])


def test_places_of_the_same_label_in_the_first_epoch():
    labels = torch.tensor([[5, 3, 5, 8, 3], [3, 5, 8, 5, 3], [5, 3, 5, 8, 3]])
    rows = rows_of_first_epoch(labels)
    assert rows.tolist() == [[0, 1, 2, 3, 4], [1, 0, 3, 2, 4], [0, 1, 2, 3, 4]]
    assert torch.equal(labels[0][rows], labels)


def test_labels_that_nobody_granted():
    observation, _ = fedsgd(network(), digits().share([1]))
    with pytest.raises(MissingKnowledge, match=r"does not grant. Supply them with observation.knowing\(labels="):
        Granted()(observation, generator(0))


def test_a_regression_is_refused_and_its_granted_targets_are_not():
    table = data.load("diabetes").share(range(3))
    model = models.mlp(shape=table.spec.shape, classes=1, hidden=(8,), seed=0)
    observation, truth = fedsgd(model, table)
    with pytest.raises(MissingKnowledge, match="only be inferred for classification with cross-entropy"):
        LastLayer()(observation, generator(0))
    known = observation.knowing(labels=truth.targets)
    assert torch.equal(LastLayer()(known, generator(0)), truth.targets)


@pytest.mark.parametrize("dummies", [0, -1, 1.5])
def test_dummies_must_be_a_whole_number(dummies):
    with pytest.raises(InvalidInput, match="dummies must be a whole number of at least 1"):
        LastLayer(dummies=dummies)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "middle"}, "no place to take statistics 'middle'"),
        ({"read": "weights"}, "no part of the last layer 'weights'"),
    ],
)
def test_places_and_parts_that_do_not_exist_are_named(options, message):
    with pytest.raises(UnknownName, match=message):
        LastLayer(**options)


@pytest.mark.parametrize("grant", [[], ["labels"], ["label_counts"]], ids=str)
def test_shuffled_labels_are_the_same_in_an_order_of_the_seed(grant):
    observation, _ = fedsgd(network(), digits().share(range(20)), granted=grant)
    plain = LastLayer()(observation, generator(0)).tolist()
    one, same, other = (LastLayer(shuffle=True)(observation, generator(seed)).tolist() for seed in (0, 0, 1))
    assert one == same
    assert one not in (plain, other)
    assert sorted(one) == sorted(plain)


def rows_with_labels(*labels):
    """The first digits with these labels."""
    left = list(range(len(digits())))
    return [left.pop(next(i for i, row in enumerate(left) if digits().targets[row] == label)) for label in labels]


def read(labels, *, model=None, **options):
    """What MostNegative reads of a batch with these labels, sorted."""
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=[32], seed=0) if model is None else model
    observation, _ = fedsgd(model, digits().share(rows_with_labels(*labels)))
    return sorted(MostNegative(**options)(observation, generator(0, "labels")).tolist())


@pytest.mark.parametrize("labels", [(3,), (1, 7), (0, 2, 5, 9)], ids=str)
@pytest.mark.parametrize("distinct", [False, True])
def test_distinct_labels_are_the_most_negative_rows(labels, distinct):
    """Yin et al. 2021: after ReLU only the row of a class that is there has a negative entry."""
    assert read(labels, distinct=distinct) == sorted(labels)


@pytest.mark.parametrize("labels", [(3, 3), (1, 1, 1, 7), (4, 4, 8, 8, 0, 0)], ids=str)
def test_labels_that_occur_more_than_once_are_counted(labels):
    assert read(labels) == sorted(labels)
    assert len(set(read(labels, distinct=True))) == len(labels)  # the paper's assumption, wrong here


def test_labels_of_a_fedavg_update_are_read_too():
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=[32], seed=0)
    observation, _ = fedavg(model, digits().share(rows_with_labels(2, 4, 6, 8)), lr=0.01, epochs=2, batch_size=1)
    assert sorted(MostNegative()(observation, generator(0, "labels")).tolist()) == [2, 4, 6, 8]


def test_more_samples_than_classes_cannot_be_distinct():
    observation, _ = fedsgd(network(), digits().share(range(11)))
    with pytest.raises(InvalidInput, match="distinct=False"):
        MostNegative(distinct=True)(observation, generator(0, "labels"))
    assert len(MostNegative()(observation, generator(0, "labels"))) == 11


class OneLogit:
    """Clients of two classes whose model has one logit."""

    @staticmethod
    def network(seed=0, bias=True):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            head = nn.Linear(16, 1, bias=bias)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), head)

    @staticmethod
    def client(count, first=0):
        whole = digits()
        parity = data.Dataset(whole.inputs, whole.targets % 2, replace(whole.spec, classes=2), "parity")
        return parity.share(range(first, first + count))


@pytest.mark.parametrize("labels", [LastLayer(), MostNegative(), LastLayer(read="kernel")], ids=repr)
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("first", [0, 31, 57])
def test_the_labels_of_one_logit_are_read(labels, count, first):
    own = OneLogit.client(count, first)
    for observation, _ in (
        fedsgd(OneLogit.network(first), own),
        fedavg(OneLogit.network(first), own, lr=0.05, epochs=2, batch_size=3),
    ):
        assert observation.training.loss == "binary_cross_entropy"
        found = labels(observation, generator(0, "labels"))
        assert int((found.sort().values != own.targets.sort().values).sum()) <= count // 6


def test_the_label_of_one_sample_is_read_from_an_update_of_adam():
    for row in (1, 5, 9):
        own = digits().share([row])
        observation, _ = fedavg(network(), own, lr=0.001, epochs=3, recipe=LocalTraining(optimiser="adam"))
        assert LastLayer()(observation, generator(0, "labels")).tolist() == own.targets.tolist()
