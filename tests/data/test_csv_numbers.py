import re
from pathlib import Path

import pytest

from leakgauge.core.errors import InvalidInput
from leakgauge.data.csv_numbers import decimal_sign, is_number, to_number

FILE = Path("table.csv")


@pytest.mark.parametrize(
    ("cell", "point", "comma"),
    [
        ("12", 12, 12),
        ("-1.5", -1.5, None),
        ("+1,5", None, 1.5),
        (".5", 0.5, None),
        ("2e3", 2000, 2000),
        ("1,234", 1234, 1.234),
        ("1.234", 1.234, 1234),
        ("1.234.567,25", None, 1234567.25),
        ("1,234,567.25", 1234567.25, None),
        ("1 234,5", None, 1234.5),
        ("12\u00a0000", 12000, 12000),
        ("1'234.5", 1234.5, None),
        ("12 34", None, None),
        ("1,23,456", None, None),
        ("1.5.2", None, None),
        ("45 kg", None, None),
        ("\u0663", None, None),
        ("", None, None),
    ],
)
def test_numbers_by_their_decimal_sign(cell, point, comma):
    for sign, expected in ((".", point), (",", comma)):
        assert is_number(cell, sign) == (expected is not None)
        if expected is not None:
            assert to_number(cell, sign) == expected


@pytest.mark.parametrize(
    ("columns", "sign"),
    [
        ({"a": ["1", "2"]}, "."),
        ({"a": ["1.5", "2"]}, "."),
        ({"a": ["1,5", "2"]}, ","),
        ({"a": ["1.234", "2.345"], "b": ["0,5"]}, ","),
        ({"a": ["1,234", "2,345"], "b": ["0.5"]}, "."),
        ({"a": ["1.234", "2.345"]}, "."),
        ({"a": ["1,5", "tall"], "b": ["2.5"]}, "."),
        ({"a": []}, "."),
    ],
)
def test_the_sign_that_the_columns_show(columns, sign):
    assert decimal_sign(FILE, columns) == sign


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": ["1,5"], "b": ["2.5"]}, "'a' has decimal commas, and 'b' has decimal points"),
        ({"a": ["1,234", "2,345"]}, "the commas in the column 'a', such as in '1,234', may be decimal signs"),
    ],
)
def test_a_sign_that_is_not_clear_is_asked_for(columns, words):
    with pytest.raises(InvalidInput, match=re.escape(words)):
        decimal_sign(FILE, columns)
