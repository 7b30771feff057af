"""Sparse rows are rebuilt from the columns of a dense layer's gradient."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import data
from leakgauge.attacks import word_read_off
from leakgauge.attacks.analytic.word_read_off import fits
from leakgauge.core.data_spec import DataSpec
from leakgauge.data import Dataset
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.analytic.cases import client, dense
from tests.known_answers.populations import rare_words

WORDS = rare_words()


def linear(classes=3, bias=True, seed=0, words=200):
    torch.manual_seed(seed)
    return nn.Linear(words, classes, bias=bias)


def rebuilt(observation, truth):
    result = word_read_off()(observation, progress=False)
    return result, score(result, truth, rows_of_words=True)


@pytest.mark.parametrize("samples", [1, 4, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_rows_of_words_come_back_exactly_from_a_linear_model(samples, bias):
    rows = WORDS.share(range(samples))  # none of them is empty
    result, scored = rebuilt(*fedsgd(linear(bias=bias), rows))
    assert scored["rows"].value == 1
    assert scored["label_errors"].value == 0
    assert result.outcome.kind == "converged"


def test_a_row_without_words_comes_back_too():
    result, scored = rebuilt(*fedsgd(linear(seed=2), WORDS.share(range(40, 48))))
    assert bool((WORDS.inputs[40:48].sum(1) == 0).any())
    assert scored["rows"].value == 1
    assert result.outcome.kind == "converged"


def weighted(count=400):
    """Return rows whose words have different weights, and whose length is 1."""
    draw = torch.Generator().manual_seed(2)
    rows = rare_words().inputs[:count] * (0.5 + torch.rand(count, 200, generator=draw))
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-9)
    return Dataset(rows, WORDS.targets[:count] % 5, DataSpec((200,), 5, bounded=False))


def test_weighted_words_come_back_with_their_scale():
    result, scored = rebuilt(*fedsgd(linear(5), weighted().share([0, 1, 2])))
    assert scored["rows"].value == 1
    assert result.outcome.kind == "converged"


def test_local_steps_keep_the_rows_and_no_row_is_called_proven():
    observation, truth = fedavg(linear(), WORDS.share(range(4)), lr=0.01, epochs=3, batch_size=2)
    result, scored = rebuilt(observation, truth)
    assert scored["rows"].value == 1
    assert result.outcome.kind == "finished"


def test_normalised_rows_are_as_sparse():
    mean, std = WORDS.inputs.mean(0), WORDS.inputs.std(0).clamp_min(0.01)
    spec = replace(WORDS.spec, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    normalised = Dataset(WORDS.inputs, WORDS.targets, spec)
    _, scored = rebuilt(*fedsgd(linear(), normalised.share(range(4))))
    assert scored["rows"].value == 1


def test_the_set_of_words_of_two_classes_comes_back_and_no_mixture_is_called_proven():
    """All columns have the same direction, so weighted words cannot be told apart."""
    rows = weighted()
    two = Dataset(rows.inputs, rows.targets % 2, DataSpec((200,), 2, bounded=False))
    result, scored = rebuilt(*fedsgd(linear(2), two.share(range(4))))
    assert scored["tokens"].value == 1
    assert "0 rows are proven" in str(result.outcome)


def test_it_does_not_apply_to_dense_rows_and_pictures():
    table = data.load("breast_cancer").share(range(4))
    assert "30 of 30 columns have changed" in fits(fedsgd(linear(2, words=30), table)[0]).reason
    assert "pictures" in fits(client(dense(8), 1)[0]).reason
