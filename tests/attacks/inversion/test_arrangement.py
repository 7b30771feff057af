"""The search for labels and batches: what changes, what is the same, and what it finds."""

from dataclasses import replace

import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks import lbfgs_simulation
from leakgauge.attacks.inversion import arrangement as arrangement_module
from leakgauge.attacks.inversion.arrangement import Arrangement, search
from leakgauge.core.seeding import generator
from leakgauge.federation.client import fedavg, fedsgd

BATCHES = torch.tensor([0, 0, 1, 1])


def arrangement(labels, *orders):
    return Arrangement(torch.tensor(labels), torch.tensor(orders), BATCHES)


def test_the_key_ignores_the_numbering_of_samples_and_the_order_within_a_batch():
    one = arrangement([3, 5, 5, 7], [0, 1, 2, 3], [0, 2, 1, 3])
    assert one.key == arrangement([5, 3, 7, 5], [1, 0, 3, 2], [1, 3, 2, 0]).key
    assert one.key == arrangement([3, 5, 5, 7], [1, 0, 3, 2], [2, 0, 1, 3]).key
    assert one.key != arrangement([3, 5, 5, 7], [0, 1, 2, 3], [0, 1, 2, 3]).key
    assert one.key != arrangement([3, 5, 7, 7], [0, 1, 2, 3], [0, 2, 1, 3]).key


def test_neighbours_are_all_arrangements_with_one_change():
    one = arrangement([0, 1, 1, 1], [0, 1, 2, 3], [3, 1, 2, 0])
    labels = [other for other in one.neighbours(3) if torch.equal(other.orders, one.orders)]
    orders = [other for other in one.neighbours(3) if torch.equal(other.labels, one.labels)]
    assert len(labels) == 4 * 2 + 3  # another label of one sample, or two different labels swapped
    assert len(orders) == 2 * 4  # two samples of different batches, in one of the epochs
    assert len(labels) + len(orders) == len(one.neighbours(3))
    assert len(one.neighbours(None)) == 8
    assert one.changes(3) >= len(one.neighbours(3))
    assert one.changes(None) == 2 * 6
    assert replace(one, batch_of=torch.zeros(4, dtype=torch.long)).changes(None) == 0


def test_nothing_is_searched_where_a_search_is_hopeless(monkeypatch):
    model = models.lenet(shape=(1, 8, 8), seed=0)
    observation, _ = fedavg(model, data.load("digits").share(range(4)), lr=0.1, epochs=2, batch_size=2)
    monkeypatch.setattr(arrangement_module, "MOST_CHANGES", 10)
    monkeypatch.setattr(arrangement_module, "search", lambda *_: pytest.fail("a search was made"))
    assert len(lbfgs_simulation(steps=1)(observation, progress=False).samples) == 4


def test_the_pool_shows_progress_and_can_be_interrupted():
    model = models.lenet(shape=(1, 8, 8), seed=0)
    observation, _ = fedavg(model, data.load("digits").share(range(4)), lr=0.1, epochs=2, batch_size=2)
    reports = []

    def interrupting(step, total, loss):
        reports.append(step)
        raise KeyboardInterrupt

    result = lbfgs_simulation(pool=2)(observation, progress=interrupting)
    assert reports == [0]
    assert result.outcome.kind == "interrupted"
    assert len(result.samples) == len(result.labels) == 4


def test_a_search_finds_a_planted_arrangement_within_its_limit():
    right, calls = arrangement([2, 0, 1, 1], [0, 2, 1, 3], [2, 3, 0, 1]), []

    def value(inputs, other):
        calls.append(other)
        wrong_places = (other.orders != right.orders).sum()
        return float((other.labels != right.labels).sum() + wrong_places)

    start = arrangement([1, 0, 0, 1], [0, 1, 2, 3], [0, 1, 2, 3])
    best = search(value, torch.zeros(4), start, 3, 500, generator(0, "test"))
    assert value(None, best) < value(None, start)
    assert torch.equal(best.labels, right.labels)
    calls.clear()
    search(value, torch.zeros(4), start, 3, 7, generator(0, "test"))
    assert len(calls) == 7


def test_the_arranged_simulation_is_a_plain_loop_over_the_batches():
    from leakgauge.attacks.inversion.arrangement import _ArrangedRun

    model = models.lenet(shape=(1, 8, 8), seed=0)
    own = data.load("digits").share(range(4))
    observation, truth = fedavg(model, own, lr=0.1, epochs=2, batch_size=2)
    orders = torch.stack([torch.cat(truth.order[:2]), torch.cat(truth.order[2:])])
    run = _ArrangedRun(lbfgs_simulation(), observation, 10, generator(0, "test"))
    inputs = observation.data.normalise(truth.inputs)
    right = Arrangement(truth.targets, orders, BATCHES)
    assert run.distance(inputs, right) < 1e-6
    assert run.distance(inputs, Arrangement(truth.targets, orders.flip(1), BATCHES)) > 0.01


@pytest.mark.parametrize("granted", [(), ("labels",)])
def test_labels_are_searched_only_if_they_are_unknown(granted):
    model = models.lenet(shape=(1, 8, 8), seed=0)
    observation, truth = fedsgd(model, data.load("digits").share([1, 2]), granted=granted)
    result = lbfgs_simulation(steps=2, pool=2)(observation, progress=False)
    assert sorted(result.labels.tolist()) == sorted(truth.targets.tolist())
    assert result.samples.shape == (2, 1, 8, 8)
