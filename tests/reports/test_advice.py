"""The section that shows what stops each attack on many rounds."""

import csv
from pathlib import Path

import pytest

from leakgauge.attacks import registry
from leakgauge.reports.advice import MEASURED, METHODS, PROTECTIONS, WITHOUT_MESSAGES, advice

RESULTS = Path(__file__).parents[2] / "benchmarks" / "lmra" / "results.csv"


def latest():
    with RESULTS.open() as file:
        return {(row["row"], row["method"], row["metric"]): row for row in csv.DictReader(file)}


@pytest.mark.parametrize("attack", MEASURED)
def test_the_figures_are_those_of_the_benchmark(attack):
    measured, (method, metric) = latest(), METHODS[attack]
    for name, value in zip(PROTECTIONS, MEASURED[attack], strict=True):
        assert float(measured[f"defences/{name}", method, metric]["ours"]) == pytest.approx(value, abs=0.006)


def test_so_are_those_without_messages():
    measured = latest()
    for place, name in enumerate(PROTECTIONS):
        row = f"defences/{name}"
        figures = {
            "the other columns": float(measured[row, "columns", "aia"]["ours"]),
            "always the more frequent value": float(measured[row, "columns", "aia"]["chance"]),
            "any client": float(measured[row, "equations", "sia"]["chance"]),
        }
        assert {key: values[place] for key, values in WITHOUT_MESSAGES.items()} == pytest.approx(figures, abs=0.006)


def test_the_table_holds_the_attacks_that_were_run():
    section = advice(["attribute_by_equations", "attribute_inference", "attribute_by_equations"])
    assert [row[0] for row in section.table] == [
        "attack",
        "attribute_by_equations",
        "no message: the other columns",
        "no message: always the more frequent value",
    ]
    assert section.table[1][1:4] == ["1.00", "0.58", "0.47"]
    assert not any("malicious" in sentence for sentence in section.sentences)


def test_without_a_measured_attack_there_is_no_table():
    section = advice([], malicious=True)
    assert not section.table
    assert any("same_model" in sentence for sentence in section.sentences)


def test_every_measured_attack_exists():
    assert MEASURED.keys() == METHODS.keys() <= registry.ATTACKS.keys()
