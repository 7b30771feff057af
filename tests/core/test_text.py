"""Texts of strangers reach no output as escape sequences or as formulas."""

import csv
import io
import json

import pytest

from leakgauge.core.text import clean, csv_cell, csv_text, json_text

HOSTILE = "\x1b[2J\x00\x07\x9b31m\u202e\udc80"


def test_control_characters_are_replaced_and_line_breaks_are_kept():
    text = clean(f"first {HOSTILE}\nsecond é ß")
    assert text.endswith("\nsecond é ß")
    assert text.replace("\n", "").isprintable()
    text.encode()  # half a surrogate pair, as file names that are not UTF-8 have, is no text
    assert clean("plain") == "plain"


def test_json_holds_no_control_character_in_any_place():
    text = json_text({HOSTILE: [HOSTILE, (HOSTILE, 1.5, None)]})
    [(key, values)] = json.loads(text).items()
    assert key.isprintable()
    assert values[0].isprintable()
    assert values[1] == [values[0], 1.5, None]


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "  =1", "\t=1", "\r=1", "\n=1", "＝1", "-a"])
def test_no_text_begins_a_formula(text):
    cell = csv_cell(text)
    assert cell.lstrip()[0] not in "=+-@＝\t\r\n"


@pytest.mark.parametrize("value", [-1.5, 3, None, True, "-1.5", "+2e-3", "-inf", "noise", "", "-", "a=b", "a-b"])
def test_numbers_and_other_texts_stay(value):
    assert csv_cell(value) is value or csv_cell(value) == value


def test_a_table_is_read_back():
    rows = [["name", "value"], ["=cmd()", -1.5], ['a "quoted", text', "-2"]]
    assert list(csv.reader(io.StringIO(csv_text(rows)))) == [["name", "value"], ["'=cmd()", "-1.5"], [rows[2][0], "-2"]]
