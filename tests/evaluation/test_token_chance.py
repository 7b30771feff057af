"""The set of a client's tokens is measured beside what a guess of common tokens gives."""

from types import SimpleNamespace

import torch

from leakgauge.core.truth import Truth
from leakgauge.evaluation import score
from leakgauge.evaluation.verdict import Verdict, judge
from tests.known_answers.populations import rare_words, texts


def scored(samples, own, **options):
    data = options.pop("data", texts())
    truth = Truth(
        own,
        torch.zeros(len(own), dtype=torch.long),
        data.spec,
        reference_inputs=data.inputs[100:],
        reference_targets=data.targets[100:],
    )
    return score(SimpleNamespace(samples=samples, labels=None), truth, **options)


def test_words_in_any_order_are_recovered_data():
    own = texts().inputs[:4]
    result = scored(own.flip(1), own, tokens=range(10))
    assert result["features"].value == 1
    assert result["features"].chance < 0.5
    assert result["rows"].value < 1
    assert judge([dict(result.metrics)] * 2) is Verdict.RECOVERS_DATA
    assert "tokens" not in scored(own, own)


def test_the_right_set_of_words_in_wrong_texts_is_an_attribute():
    own = texts().inputs[:16]
    mixed = own.flatten()[torch.randperm(160, generator=torch.Generator().manual_seed(0))].reshape(16, 10)
    result = scored(mixed, own, tokens=range(10))
    assert result["tokens"].value == 1
    assert judge([dict(result.metrics)] * 3, labels_granted=True) is Verdict.RECOVERS_ATTRIBUTES


def test_guesses_of_tokens_are_nothing_above_chance():
    data = texts()
    common = torch.bincount(data.inputs.flatten().long()).argsort(descending=True)[:10].float().repeat(4, 1)
    for guess in (data.inputs[200:204], common, torch.zeros(4, 10)):
        verdict = judge([dict(scored(guess, data.inputs[:4], tokens=range(10)).metrics)] * 3)
        assert verdict is Verdict.NOTHING_ABOVE_CHANCE


def test_noise_in_every_column_names_no_words():
    data = rare_words()
    noise = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    result = scored(noise, data.inputs[:4], data=data, rows_of_words=True)
    assert judge([dict(result.metrics)] * 3) is Verdict.NOTHING_ABOVE_CHANCE
    assert scored(data.inputs[:4], data.inputs[:4], data=data, rows_of_words=True)["tokens"].value == 1
