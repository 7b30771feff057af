"""The README's figures are those that were measured: each line of its table is in a benchmark's results.csv."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINE = re.compile(
    r"^\| `(?P<paper>\w+) (?P<row>[\w/.-]+)` \| (?P<method>[\w-]+) \| (?P<metric>\w+) \| (?P<ours>[\d.]+)"
    r"(?: \((?P<low>[\d.]+) to (?P<high>[\d.]+)\))? \| (?P<published>[\d.]+|-)"
    r" \| (?P<chance>-?[\d.]+) \| (?P<clients>\d+) \|$"
)
LINES = [match for line in (ROOT / "README.md").read_text().splitlines() if (match := LINE.match(line))]


def test_there_is_a_table():
    assert len(LINES) >= 5


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['row']} {line['method']} {line['metric']}")
def test_a_line_was_measured(line):
    with (ROOT / "benchmarks" / line["paper"] / "results.csv").open() as file:
        measured = [
            one
            for one in csv.DictReader(file)
            if all(one[key] == line[key] for key in ("row", "method", "metric", "clients"))
        ]
    assert measured, "no such measurement"
    latest = measured[-1]
    for key in ("ours", "low", "high", "chance"):
        if line[key] is None:  # no interval over a single client
            assert latest[key] == ""
            continue
        digits = len(line[key].partition(".")[2])
        assert round(float(latest[key]), digits) == float(line[key]), key
    published = latest["published"]
    assert (published or "-") == line["published"] or float(published) == float(line["published"])
