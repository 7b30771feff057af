"""Label counts from the last layer of an update, and their rounding."""

import time
from dataclasses import replace
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge import models
from leakgauge.attacks.inversion import label_counts
from leakgauge.attacks.inversion.label_counts import (
    dummies_held,
    dummy_statistics,
    estimate_label_counts,
    number_of_dummies,
    raise_counts,
    round_counts,
)
from leakgauge.attacks.inversion.last_layer import last_linear
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.seeding import generator
from leakgauge.data import Dataset
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import Clipping
from tests.attacks.inversion.label_cases import cnn, estimate, half_the_errors, network, normalised
from tests.shared import digits

PLACES = ("server", "client", "interpolated")


finite = st.floats(-1e6, 1e6)


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


def test_the_same_generator_gives_the_same_counts_and_torchs_own_is_left_alone():
    observation, _ = fedsgd(network(), digits().share(range(6)))
    before = torch.get_rng_state()
    assert torch.equal(estimate(observation), estimate(observation))
    assert torch.equal(torch.get_rng_state(), before)


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


def test_label_smoothing_is_taken_out_of_the_counts():
    whole = digits()
    own = whole.share(torch.nonzero(whole.targets == 3).flatten()[:8].tolist())
    for smoothing in (0.0, 0.4):
        observation, truth = fedsgd(network(), own, recipe=LocalTraining(label_smoothing=smoothing))
        assert half_the_errors(estimate(observation), truth) == 0
    unaware = observation.knowing(label_smoothing=0.0)
    assert half_the_errors(estimate(unaware), truth) > 0


def test_the_classes_of_several_samples_are_read_from_an_update_of_adam():
    own = digits().share(range(20, 24))
    observation, truth = fedavg(network(), own, lr=0.001, recipe=LocalTraining(optimiser="adam"))
    assert half_the_errors(estimate(observation), truth) <= 1


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


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 40), min_size=1, max_size=12))
def test_an_estimate_that_adds_up_is_rounded_up_or_down(values):
    estimate = torch.tensor(values, dtype=torch.double)
    total = round(sum(values))
    counts = round_counts(estimate + (total - sum(values)) / len(values), total)
    assert (counts - estimate).abs().max() <= 2
    assert int(counts.sum()) == total


def test_the_rest_goes_to_the_largest_remainders():
    assert round_counts(torch.tensor([1.2, 0.9, 2.6, -0.7]), 5).tolist() == [1, 1, 3, 0]
    assert round_counts(torch.tensor([0.5, 0.5, 0.0]), 1).tolist() == [1, 0, 0]


def test_whole_parts_that_are_too_many_are_given_back_by_the_smallest_remainders():
    assert round_counts(torch.tensor([3.9, 2.1, 4.5, 0.0]), 8).tolist() == [3, 1, 4, 0]
    assert round_counts(torch.tensor([3.9, 2.1, 4.5, 0.0]), 7).tolist() == [3, 1, 3, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_broken_estimates_still_add_up(bad):
    counts = round_counts(torch.tensor([bad, 1.0, bad]), 7)
    assert int(counts.sum()) == 7
    assert int(counts.min()) >= 0


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
    for values in (wild, torch.full((10,), float("nan")), torch.full((10,), 1e30), -wild.abs()):
        assert int(round_counts(values, total).sum()) == total
        counts = raise_counts(torch.zeros(10, dtype=torch.long), values.nan_to_num().clamp(0, total), total)
        assert int(counts.sum()) == total
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("shape", "expected"), [((1, 8, 8), 1000), ((3, 32, 32), 1000), ((3, 64, 64), 250), ((3, 224, 224), 64)]
)
def test_large_samples_need_few_dummies(shape, expected):
    assert number_of_dummies(shape) == expected
    assert number_of_dummies(shape, 3000) == 3000
    assert dummies_held(shape, 3000) * prod(shape) <= 2**24 + 250 * 64  # 64 MB, however many the user asks for


def test_dummies_pass_in_parts_and_give_the_same_statistics(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 5))
    observation, _ = fedsgd(model, Dataset(torch.rand(2, 3, 4, 4), torch.tensor([0, 3]), DataSpec((3, 4, 4), 5)))
    inside = observation.model
    layer, passed = inside[3], []
    inside[1].register_forward_pre_hook(lambda _, inputs: passed.append(len(inputs[0])))

    def statistics():
        return label_counts.dummy_statistics(observation, observation.sent, layer, 100, torch.Generator())

    whole = statistics()
    assert passed == [100]
    monkeypatch.setattr(label_counts, "_VALUES_AT_A_TIME", 48 * 16)
    monkeypatch.setattr(label_counts, "_DRAWN", 48 * 32)
    parts = statistics()
    assert passed[1:] == [16] * 6 + [4]
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)
