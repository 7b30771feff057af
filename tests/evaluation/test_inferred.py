"""Inferred columns are scored beside the guess of an attacker without any message."""

import pytest
import torch

from leakgauge.core.observation import DataSpec
from leakgauge.core.truth import Truth
from leakgauge.evaluation.chance import Chance
from leakgauge.evaluation.inferred import (
    MOST_FREQUENT,
    OTHER_COLUMNS,
    HiddenColumn,
    attribute_chance,
    attribute_chance_among,
    column_values,
    share_measure,
)

SPEC = DataSpec((2,), 2, bounded=False, columns=("height", "sex"))
ROWS = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(10, 1)
TARGETS = torch.zeros(20).long()


def truth(*, reference=False):
    return Truth(ROWS, TARGETS, SPEC, (), ROWS if reference else None, TARGETS if reference else None)


def test_a_column_that_the_others_predict_is_no_leak():
    own = truth(reference=True)
    assert attribute_chance(HiddenColumn.of(own, "sex"), own, "sex") == Chance(1.0, OTHER_COLUMNS)


def test_without_other_people_the_most_frequent_value_is_the_guess():
    own = truth()
    assert attribute_chance(HiddenColumn.of(own, "sex"), own, "sex") == Chance(0.5, MOST_FREQUENT)


def test_among_clients_the_other_columns_are_learned_from_the_others():
    hidden = {name: HiddenColumn.of(truth(), "sex") for name in ("a", "b")}
    assert attribute_chance_among(hidden) == Chance(1.0, OTHER_COLUMNS)
    assert attribute_chance_among({"a": hidden["a"]}) == Chance(0.5, MOST_FREQUENT)


def test_any_value_and_any_category_can_be_hidden():
    assert column_values([truth()], "sex") == [0.0, 1.0]
    hidden = HiddenColumn.of(truth(), "height", (1.0, 0.0))
    assert hidden.values.tolist() == [1, 0] * 10
    spec = DataSpec((3,), 2, bounded=False, columns=("age", "job=a", "job=b"))
    rows = torch.tensor([[30.0, 1.0, 0.0], [40.0, 0.0, 1.0]])
    jobs = Truth(rows, torch.zeros(2).long(), spec)
    assert column_values([jobs], "job") == ()
    assert HiddenColumn.of(jobs, "job").values.tolist() == [0, 1]


def test_shares_are_over_all_records_with_the_worst_client():
    measure = share_measure("attribute_accuracy", [torch.ones(10), torch.zeros(30)], Chance(0.5, MOST_FREQUENT))
    assert (measure.value, measure.worst, measure.n, measure.of) == (0.25, 1.0, 40, "records")
    assert measure.chance == 0.5
    assert measure.low == pytest.approx(0.142, abs=1e-3)
