"""Token ids and categories are read from the rows of an embedding's gradient."""

import pytest
import torch

from leakgauge.attacks import embedding_read_off
from leakgauge.attacks.analytic.embedding_read_off import fits
from leakgauge.attacks.analytic.lookups import lookups_of
from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import build
from tests.attacks.analytic.cases import client, dense
from tests.attacks.analytic.texts import TEXTS, Concatenated, mixed_rows, reader


def read(observation, truth):
    result = embedding_read_off()(observation, progress=False)
    return result, score(result, truth, tokens=lookups_of(observation).tokens)


@pytest.mark.parametrize("samples", [1, 4, 12])
def test_the_words_of_each_text_come_back_from_a_mean_of_embeddings(samples):
    result, scored = read(*fedsgd(reader(), TEXTS.share(range(20, 20 + samples))))
    assert scored["tokens"].value == 1
    assert scored["features"].value > (0.95 if samples < 12 else 0.7)
    assert scored["label_errors"].value == 0
    assert result.outcome.kind == "finished"  # the order of the words is not in the message


def test_local_training_leaves_the_words():
    observation, truth = fedavg(reader(), TEXTS.share(range(4)), lr=0.1, epochs=3, batch_size=2)
    _, scored = read(observation, truth)
    assert scored["features"].value == 1


def test_adam_leaves_the_set_of_words():
    recipe = LocalTraining(optimiser="adam")
    observation, truth = fedavg(reader(), TEXTS.share(range(4)), lr=1e-3, epochs=2, recipe=recipe)
    _, scored = read(observation, truth)
    assert scored["tokens"].value == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_a_recurrent_networks_only_text_comes_back_in_order(seed):
    observation, truth = fedsgd(reader("gru", seed), TEXTS.share([7 + seed]))
    result, scored = read(observation, truth)
    assert torch.equal(result.samples, truth.inputs)
    assert result.outcome.kind == "converged"
    assert "a replay gives the same message" in str(result.outcome)
    assert scored["label_errors"].value == 0


def test_a_batch_of_a_recurrent_network_shows_the_set_of_words_and_no_proof():
    result, scored = read(*fedsgd(reader("gru"), TEXTS.share(range(6))))
    assert scored["tokens"].value == 1
    assert result.outcome.kind == "finished"
    assert "dealt at random" in str(result.outcome)


@pytest.mark.parametrize("samples", [1, 6])
def test_categories_and_the_numbers_beside_them_come_back_exactly(samples):
    torch.manual_seed(0)
    observation, truth = fedsgd(Concatenated(), mixed_rows(samples))
    result, scored = read(observation, truth)
    assert scored["rows"].value == 1
    assert result.outcome.kind == "converged"


def test_noise_hides_the_rows():
    noise = build("gaussian_noise", sigma=0.1, on="update")
    observation, _ = fedsgd(reader(), TEXTS.share([0]), defences=[noise])
    assert "300 rows of table.weight have changed, and the samples look up at most 10" in fits(observation).reason
    with pytest.raises(InvalidInput, match="does not apply"):
        embedding_read_off()(observation, progress=False)


def test_it_does_not_apply_without_an_embedding_or_to_a_frozen_one():
    assert "looks up no value" in fits(client(dense(8), 1)[0]).reason
    model = reader()
    model.table.requires_grad_(False)
    assert "not trained" in fits(fedsgd(model, TEXTS.share([0]))[0]).reason


def test_another_text_with_the_same_set_of_words_is_not_called_exact():
    """The replay is the proof, and must fail for a text in the wrong order."""
    observation, truth = fedsgd(reader("gru"), TEXTS.share([7]))
    result = embedding_read_off(restarts=1)(observation, progress=False, seed=3)
    assert (result.outcome.kind == "converged") == torch.equal(result.samples, truth.inputs)
