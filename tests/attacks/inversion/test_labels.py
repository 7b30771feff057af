"""Labels read from the last layer: exact for one sample, near the truth for many, refused where impossible."""

import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge import data, models
from leakgauge.attacks.inversion.labels import (
    Granted,
    LastLayer,
    MostNegative,
    dummy_statistics,
    estimate_label_counts,
    last_linear,
    raise_counts,
    round_counts,
    rows_of_first_epoch,
)
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import Clipping
from tests.shared import digits


def network(**options):
    return models.lenet(shape=(1, 8, 8), classes=10, **({"seed": 0} | options))


def estimate(observation):
    return estimate_label_counts(observation, generator(0, "labels"))


def half_the_errors(counts, truth):
    return int((counts - truth.label_counts).abs().sum()) // 2


@pytest.mark.parametrize("row", range(0, 30, 3))
@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_the_label_of_one_sample_is_exact(row, activation):
    observation, truth = fedsgd(network(activation=activation), digits().share([row]))
    assert LastLayer()(observation, generator(0)).tolist() == truth.targets.tolist()


def test_the_label_of_one_sample_survives_local_training():
    observation, truth = fedavg(network(), digits().share([7]), lr=0.01, epochs=5)
    assert LastLayer()(observation, generator(0)).tolist() == truth.targets.tolist()


@pytest.mark.parametrize("samples", [2, 8, 40])
@pytest.mark.parametrize("initialisation", ["uniform", "default"])
def test_counts_of_a_batch_on_an_untrained_network_are_near_the_truth(samples, initialisation):
    chosen = digits().share(range(100, 100 + samples))
    observation, truth = fedsgd(network(initialisation=initialisation), chosen)
    counts = estimate(observation)
    assert int(counts.sum()) == samples
    assert half_the_errors(counts, truth) <= samples // 20


@pytest.mark.parametrize("read", ["bias", "kernel"])
def test_an_attacker_who_knows_of_clipping_counts_as_well_as_without_it(read):
    clipped = {"defences": Clipping(0.01), "knows_defence": True}
    observation, truth = fedsgd(network(initialisation="default"), digits().share(range(100, 108)), **clipped)
    counts = estimate_label_counts(observation, generator(0, "labels"), read=read)
    assert half_the_errors(counts, truth) == 0
    assert half_the_errors(estimate(replace(observation, defences=None)), truth) > 1


def test_counts_from_trained_weights_are_near_the_truth():
    observation, truth = fedavg(network(), digits().share(range(20)), lr=0.01, epochs=2, batch_size=5)
    counts = estimate(observation)
    assert int(counts.sum()) == 20
    assert half_the_errors(counts, truth) <= 2


def test_without_a_bias_the_kernel_tells():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.Sigmoid(), nn.Linear(50, 10, bias=False))
    observation, truth = fedsgd(model, digits().share(range(12)))
    assert half_the_errors(estimate(observation), truth) <= 1
    single, truth = fedsgd(model, digits().share([3]))
    assert estimate(single).tolist() == truth.label_counts.tolist()


def test_inferred_labels_are_those_of_the_counts_in_order():
    observation, truth = fedsgd(network(), digits().share([3, 3, 5, 1]))
    labels = LastLayer()(observation, generator(0))
    assert labels.tolist() == sorted(truth.targets.tolist())
    assert labels.dtype == torch.long


def test_the_same_generator_gives_the_same_counts_and_torchs_own_is_left_alone():
    observation, _ = fedsgd(network(), digits().share(range(6)))
    before = torch.get_rng_state()
    assert torch.equal(estimate(observation), estimate(observation))
    assert torch.equal(torch.get_rng_state(), before)


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


@pytest.mark.parametrize(
    "tail",
    [[nn.Linear(64, 10), nn.BatchNorm1d(10)], [nn.Linear(64, 30), nn.Unflatten(1, (10, 3)), nn.AvgPool1d(3)]],
    ids=["ends in batch norm", "last linear layer of another size"],
)
def test_a_model_that_does_not_end_in_a_linear_layer_is_refused(tail):
    model = nn.Sequential(nn.Flatten(), *tail, nn.Flatten())
    observation, _ = fedsgd(model, digits().share(range(4)))
    with pytest.raises(MissingKnowledge, match=r"does not end in a linear layer with 10 outputs\. Supply them"):
        estimate(observation)


def test_a_frozen_last_layer_tells_nothing_and_is_refused():
    model = network()
    for parameter in model.head.parameters():
        parameter.requires_grad_(False)
    observation, _ = fedsgd(model, digits().share([4]))
    with pytest.raises(MissingKnowledge, match=r"labels cannot be inferred, because .* is not trained"):
        estimate(observation)


def test_the_last_layer_is_found_by_name():
    assert last_linear(network(), 10)[0] == "head"


@pytest.mark.parametrize("hidden", ["lr", "samples"])
def test_what_inference_needs_and_does_not_have_is_named(hidden):
    observation, _ = fedavg(network(), digits().share(range(4)), lr=0.1, hidden=[hidden])
    with pytest.raises(MissingKnowledge, match=f"needs the client's {hidden}"):
        estimate(observation)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norm_statistics_are_left_alone(mode):
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(16,), batch_norm=True, seed=0)
    observation, _ = fedsgd(model, digits().share(range(8)), mode=mode)
    assert observation.buffers is not None
    before = {name: value.clone() for name, value in observation.buffers.items()}
    assert int(estimate(observation).sum()) == 8
    assert all(torch.equal(before[name], value) for name, value in observation.buffers.items())


@pytest.mark.parametrize("dummies", [0, -1, 1.5])
def test_dummies_must_be_a_whole_number(dummies):
    with pytest.raises(InvalidInput, match="dummies must be a whole number of at least 1"):
        LastLayer(dummies=dummies)


finite = st.floats(-1e6, 1e6)


@settings(max_examples=200, deadline=None)
@given(st.lists(finite, min_size=1, max_size=12), st.integers(0, 300))
def test_rounded_counts_are_never_negative_and_add_up(values, total):
    counts = round_counts(torch.tensor(values), total)
    assert counts.dtype == torch.long
    assert int(counts.min()) >= 0
    assert int(counts.sum()) == total


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_whole_counts_stay_as_they_are(values):
    assert round_counts(torch.tensor(values).float(), sum(values)).tolist() == values


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), st.integers(0, 10**6))
def test_counts_that_are_off_by_less_than_half_are_restored(values, seed):
    noise = torch.rand(len(values), generator=torch.Generator().manual_seed(seed)) * 0.8 - 0.4
    noise -= noise.mean()
    exact = torch.tensor(values)
    near = exact + noise.clamp(-0.45, 0.45)
    assert (round_counts(near, sum(values)) - exact).abs().max() <= 1


def test_the_rest_goes_to_the_largest_remainders():
    assert round_counts(torch.tensor([1.2, 0.9, 2.6, -0.7]), 5).tolist() == [1, 1, 3, 0]
    assert round_counts(torch.tensor([0.5, 0.5, 0.0]), 1).tolist() == [1, 0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_broken_estimates_still_add_up(bad):
    counts = round_counts(torch.tensor([bad, 1.0, bad]), 7)
    assert int(counts.sum()) == 7
    assert int(counts.min()) >= 0


PLACES = ("server", "client", "interpolated")


def cnn(seed=0):
    return models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[8, 16], dense=32, seed=seed)


def normalised(rows):
    return replace(digits(), spec=replace(digits().spec, mean=(0.305,), std=(0.376,))).share(rows)


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("read", ["bias", "kernel", None])
@pytest.mark.parametrize("batch_size", [5, 8, 20])
def test_counts_after_local_training_of_a_convolutional_network(at, read, batch_size):
    observation, truth = fedavg(cnn(), normalised(range(60, 80)), lr=0.004, epochs=5, batch_size=batch_size)
    counts = estimate_label_counts(observation, generator(0), at=at, read=read)
    assert int(counts.sum()) == 20
    assert half_the_errors(counts, truth) <= (2 if read == "kernel" else 1)


@pytest.mark.parametrize("read", ["bias", "kernel"])
def test_interpolated_counts_are_the_average_over_the_local_steps(read):
    """A learning rate at which the statistics move: at either end the counts are others."""
    observation, _ = fedavg(cnn(), normalised(range(200)), lr=0.1, epochs=3, batch_size=50)
    assert observation.returned is not None
    name, layer = last_linear(observation.model, 10)
    (first, into), (last, out) = (
        dummy_statistics(observation, weights, layer, 1000, generator(0))
        for weights in (observation.sent, observation.returned)
    )
    update = observation.difference()
    total = torch.zeros(10)
    for step in range(12):
        share = step / 12
        chances, entering = (1 - share) * first + share * last, (1 - share) * into + share * out
        moved = update[f"{name}.bias"] if read == "bias" else update[f"{name}.weight"].sum(1) / entering
        total += 200 * chances - 200 * moved / (0.1 * 12)
    found = {at: estimate_label_counts(observation, generator(0), at=at, read=read).tolist() for at in PLACES}
    assert found["interpolated"] == round_counts(total / 12, 200).tolist()
    assert found["server"] != found["interpolated"] != found["client"]


@pytest.mark.parametrize("at", PLACES)
def test_of_a_gradient_all_places_are_the_server(at):
    observation, _ = fedsgd(cnn(), normalised(range(12)))
    expected = estimate_label_counts(observation, generator(0), at="server")
    assert torch.equal(estimate_label_counts(observation, generator(0), at=at), expected)


def test_without_a_bias_the_kernel_is_read_after_local_training_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10, bias=False))
    observation, truth = fedavg(model, digits().share(range(12)), lr=0.004, epochs=3, batch_size=4)
    found, kernel = (estimate_label_counts(observation, generator(0), read=read) for read in (None, "kernel"))
    assert torch.equal(found, kernel)
    assert int(found.sum()) == 12
    assert half_the_errors(found, truth) <= 2
    with pytest.raises(
        MissingKnowledge, match="cannot be read from the bias, because the last layer, '3', trains none"
    ):
        estimate_label_counts(observation, generator(0), read="bias")


def test_a_bias_that_is_not_trained_is_not_read():
    model = cnn()
    model.head.bias.requires_grad_(False)
    observation, truth = fedavg(model, normalised(range(12)), lr=0.004, epochs=3, batch_size=4)
    assert half_the_errors(estimate(observation), truth) <= 1
    with pytest.raises(MissingKnowledge, match="'head', trains none"):
        estimate_label_counts(observation, generator(0), read="bias")


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


def test_whole_parts_that_are_too_many_are_given_back_by_the_smallest_remainders():
    assert round_counts(torch.tensor([3.9, 2.1, 4.5, 0.0]), 8).tolist() == [3, 1, 4, 0]
    assert round_counts(torch.tensor([3.9, 2.1, 4.5, 0.0]), 7).tolist() == [3, 1, 3, 0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 40), min_size=1, max_size=12))
def test_an_estimate_that_adds_up_is_rounded_up_or_down(values):
    estimate = torch.tensor(values, dtype=torch.double)
    total = round(sum(values))
    counts = round_counts(estimate + (total - sum(values)) / len(values), total)
    assert (counts - estimate).abs().max() <= 2
    assert int(counts.sum()) == total


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


def test_label_smoothing_is_taken_out_of_the_counts():
    whole = digits()
    own = whole.share(torch.nonzero(whole.targets == 3).flatten()[:8].tolist())
    for smoothing in (0.0, 0.4):
        observation, truth = fedsgd(network(), own, recipe=LocalTraining(label_smoothing=smoothing))
        assert half_the_errors(estimate(observation), truth) == 0
    unaware = observation.knowing(label_smoothing=0.0)
    assert half_the_errors(estimate(unaware), truth) > 0


def test_the_label_of_one_sample_is_read_from_an_update_of_adam():
    for row in (1, 5, 9):
        own = digits().share([row])
        observation, _ = fedavg(network(), own, lr=0.001, epochs=3, recipe=LocalTraining(optimiser="adam"))
        assert LastLayer()(observation, generator(0, "labels")).tolist() == own.targets.tolist()


def test_the_classes_of_several_samples_are_read_from_an_update_of_adam():
    own = digits().share(range(20, 24))
    observation, truth = fedavg(network(), own, lr=0.001, recipe=LocalTraining(optimiser="adam"))
    assert half_the_errors(estimate(observation), truth) <= 1


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(-50, 200)), min_size=1, max_size=12),
    st.integers(0, 300),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_counts_are_raised_as_if_one_by_one(classes, total, ties):
    counts = torch.tensor([count for count, _ in classes])
    wanted = torch.tensor([estimate for _, estimate in classes]).double()
    wanted = wanted.round() if ties else wanted
    expected = counts.clone()
    while int(expected.sum()) < total:
        expected[int((wanted - expected).argmax())] += 1
    assert raise_counts(counts, wanted, total).tolist() == expected.tolist()


@pytest.mark.parametrize("total", [10**6, 10**9])
def test_the_work_of_counting_labels_does_not_grow_with_the_samples(total):
    draw = torch.Generator().manual_seed(0)
    wild = total * torch.randn(10, generator=draw)
    began = time.process_time()
    for estimate in (wild, torch.full((10,), float("nan")), torch.full((10,), 1e30), -wild.abs()):
        assert int(round_counts(estimate, total).sum()) == total
        counts = raise_counts(torch.zeros(10, dtype=torch.long), estimate.nan_to_num().clamp(0, total), total)
        assert int(counts.sum()) == total
    assert time.process_time() - began < 5
