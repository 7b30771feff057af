"""Rows of a table come back after several local steps, and the attack refuses in words where it does not apply."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from leakgauge.attacks import local_rows
from leakgauge.attacks.analytic.finders import starting_points
from leakgauge.attacks.analytic.levenberg import search
from leakgauge.attacks.analytic.local_rows import HeldProblem, TableLayers, fits
from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.analytic.cases import DIGITS, dense, people, rows_right, table_network

PEOPLE = people(200)
TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch_size": 8, "seed": 0}


def client(rows=24, **options):
    return fedavg(table_network(), PEOPLE.share(range(rows)), **{**TRAINING, **options})[0]


def test_rows_and_labels_come_back():
    share = PEOPLE.share(range(24))
    result = local_rows(starts=48)(client())
    right, wrong = rows_right(result, share)
    assert right >= 22
    assert wrong == 0
    found, true = share.spec.normalise(result.samples), share.spec.normalise(share.inputs)
    labels = share.targets[torch.cdist(found, true).argmin(1)]
    assert int((result.labels == labels).sum()) >= 21


@pytest.mark.parametrize("hidden", ["lr", "samples"])
def test_the_learning_rate_and_the_number_of_rows_may_be_unknown(hidden):
    observation = client(12, hidden=[hidden])
    right, wrong = rows_right(local_rows()(observation), PEOPLE.share(range(12)))
    assert right >= 10
    assert wrong == 0


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_weight_decay_adds_the_sent_weights_which_are_taken_away(momentum):
    result = local_rows()(client(12, weight_decay=0.01, momentum=momentum))
    right, wrong = rows_right(result, PEOPLE.share(range(12)))
    assert right >= 10
    assert wrong == 0


def test_a_regression_gives_rows_without_targets():
    table = replace(PEOPLE, targets=PEOPLE.inputs[:, 0] / 40, spec=replace(PEOPLE.spec, classes=None))
    network = table_network()
    network[-1] = torch.nn.Linear(80, 1)
    observation, _ = fedavg(network, table.share(range(8)), recipe=LocalTraining(loss="mse"), **TRAINING)
    result = local_rows()(observation)
    assert result.labels is None
    assert rows_right(result, table.share(range(8)))[1] == 0


def test_categories_that_are_held_stay_while_the_numbers_move():
    layers = TableLayers.of(client())
    problem = next(layers.problems())
    first = layers.first
    starts = starting_points(first, first.right[-1], 4, torch.Generator().manual_seed(0))
    held = HeldProblem(problem.layer, problem.last, problem.span, problem.activation, problem.hot)
    wanted = (starts @ problem.hot.T).round().clamp(0, 1)
    ends, residuals = search(held, torch.cat([starts, wanted], 1), 10)
    assert torch.equal(ends[:, held.rank :], wanted)
    assert torch.allclose(ends[:, : held.rank] @ problem.last, torch.ones(4, dtype=torch.double))
    assert bool((residuals <= held.evaluate(held.onto_plane(torch.cat([starts, wanted], 1)))[-1]).all())


def test_ctrl_c_returns_the_rows_found_so_far():
    def interrupt(step, total, loss):
        raise KeyboardInterrupt

    result = local_rows(starts=24)(client(8), progress=interrupt)
    assert result.outcome.kind == "interrupted"
    assert len(result.samples)


REFUSED = {
    "made for several local steps": lambda: fedsgd(table_network(), PEOPLE.share(range(8)))[0],
    "made for tables with one-hot columns": lambda: fedavg(dense(48, 24), DIGITS.share(range(8)), **TRAINING)[0],
    "weight decay is known": lambda: client(weight_decay=0.1, hidden=["lr"]),
    "does not show a span of 4 samples": lambda: replace(
        client(4), returned={name: value + 1e-3 * torch.randn_like(value) for name, value in client(4).returned.items()}
    ),
    "has a single dense layer": lambda: fedavg(table_network(hidden=()), PEOPLE.share(range(8)), **TRAINING)[0],
    "does not separate 40 samples": lambda: fedavg(table_network(hidden=(80, 30)), PEOPLE.share(range(40)), **TRAINING)[
        0
    ],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    observation = REFUSED[reason]()
    fit = fits(observation)
    assert not fit.applies
    assert reason in fit.reason
    with pytest.raises(InvalidInput, match=reason):
        local_rows()(observation)


@pytest.mark.parametrize("option", ["starts", "iterations", "attempts"])
def test_impossible_options_are_refused(option):
    with pytest.raises(InvalidInput, match=option):
        local_rows(**{option: 0})
