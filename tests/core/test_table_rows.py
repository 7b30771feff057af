"""Rows of a table as a person reads them."""

import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.table_rows import decimals_of, features_of, number_text, records_of

SPEC = DataSpec(
    (7,), 2, bounded=False, columns=("age", "job=cook", "job=nurse", "sex", "town=Ulm", "bmi", "job=clerk"),
    mean=(40.0,) + (0.0,) * 6, std=(10.0,) + (1.0,) * 6,
)  # fmt: skip
TRUE = torch.tensor([[39.0, 0, 1, 1, 0, 27.9, 0], [41.0, 0, 0, 0, 1, 30.25, 1]])


def test_the_columns_of_the_users_table():
    names = [(feature.name, feature.columns, feature.values) for feature in features_of(SPEC)]
    assert names == [
        ("age", (0,), ()),
        ("job", (1, 2, 6), ("cook", "nurse", "clerk")),
        ("sex", (3,), ()),
        ("town", (4,), ("Ulm",)),
        ("bmi", (5,), ()),
    ]
    assert [feature.name for feature in features_of(DataSpec((2,), 2))] == ["column 0", "column 1"]
    both = DataSpec((2,), 2, bounded=False, columns=("age", "age=old"))
    assert [feature.values for feature in features_of(both)] == [(), ("old",)]


def test_rows_have_names_and_their_own_units():
    words = {"sex": ("female", "male")}
    assert records_of(TRUE, SPEC, words=words) == [
        ["39", "nurse", "male", "other", "27.90"],
        ["41", "clerk", "female", "Ulm", "30.25"],
    ]
    rebuilt = SPEC.denormalise(SPEC.normalise(TRUE) + 0.04)  # an attack's result is in the users' units too
    assert records_of(rebuilt, SPEC, like=TRUE, words=words)[0] == ["39", "nurse", "male", "other", "27.94"]


def test_values_that_did_not_come_back():
    nothing = torch.full((1, 7), torch.nan)
    assert records_of(nothing, SPEC, like=TRUE, words={"sex": ("f", "m")}) == [["-"] * 5]


def test_as_many_decimals_as_the_true_numbers_have():
    for decimals, numbers in ((0, [1.0, 250.0]), (1, [27.9, 3.0]), (2, [0.25]), (4, [0.12345])):
        assert decimals_of(torch.tensor(numbers)) == decimals
    assert [number_text(value, 1) for value in (-0.04, 1e10, float("inf"))] == ["0.0", "1e+10", "-"]
    assert [number_text(value, 0, ("a", "b")) for value in (-3.0, 0.4, 0.6, 9.0)] == ["a", "a", "b", "b"]
