"""Results come back as they were, and no class outside Leakgauge is ever built."""

import math
from dataclasses import dataclass
from enum import Enum

import pytest
import torch

from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.core.measure import Measure
from leakgauge.core.observation import LocalTraining
from leakgauge.evaluation.verdict import Verdict
from leakgauge.runtime.codec import decode, encode


@dataclass(frozen=True)
class Outside:
    value: int = 1


class OutsideEnum(Enum):
    A = 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        "text",
        math.inf,
        -math.inf,
        [1, [2.5, "a"], (3, ())],
        {"a": {"b": None}, "c": [True]},
        {1: "one", (2, 3): "pair", None: 0},
        {"$dict": [], "$tuple": 1},
        LocalTraining(lr=0.1, epochs=2),
        Verdict.RECOVERS_DATA,
        {"scores": [(Verdict.NOT_SCORED, LocalTraining(lr=1.0))]},
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value):
    assert decode(encode(value)) == value
    assert repr(decode(encode(value))) == repr(value)


def test_nan_and_classes_without_equality_come_back():
    assert math.isnan(decode(encode(math.nan)))
    assert repr(decode(encode(Measure("psnr", 1.0)))) == repr(Measure("psnr", 1.0))


@pytest.mark.parametrize(
    "value",
    [Outside(), OutsideEnum.A, [Outside()], torch.zeros(1), {1, 2}, object()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_ours_is_refused_in_words(value):
    with pytest.raises(InvalidInput, match="cannot be cached"):
        encode(value)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        '{"$dataclass": "tests.runtime.test_codec:Outside", "fields": {}}',
        '{"$dataclass": "os:system", "fields": {}}',
        '{"$dataclass": "leakgauge_evil:A", "fields": {}}',
        '{"$dataclass": "leakgauge.runtime.codec:json.JSONDecoder", "fields": {}}',
        '{"$dataclass": "leakgauge.runtime.codec:encode", "fields": {"value": 1}}',
        '{"$dataclass": "leakgauge.core.measure:Measure", "fields": {"no such field": 1}}',
        '{"$dataclass": "leakgauge.core.measure:Measure"}',
        '{"$dataclass": "leakgauge.no.such.module:Measure", "fields": {}}',
        '{"$dataclass": 1, "fields": {}}',
        '{"$enum": "leakgauge.evaluation.verdict:Verdict", "name": "NO_SUCH_NAME"}',
        '{"$enum": "leakgauge.core.measure:Measure", "name": "A"}',
        '{"$dict": [1]}',
        '{"$tuple": 1}',
    ],
)
def test_altered_text_is_refused(text):
    with pytest.raises(CorruptFile, match="stored result"):
        decode(text)
