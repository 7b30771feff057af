"""The README shows what is true: its example gives its output, its statuses are those of the benchmarks."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAPERS = ("dlf", "agic", "awa", "epafl", "lmra")
EXAMPLE = re.compile(r"^```python\n(import leakgauge(?:(?!```).)*)```\n\n```text\n(.*?)```", re.MULTILINE | re.DOTALL)
STATUS = re.compile(r"^\| \[\w+\]\(benchmarks/(?P<paper>\w+)/README\.md\).* \| (?P<status>[\w ]+) \|$", re.MULTILINE)
#: How far a figure may be from the printed one. Rounding differs between machines, and 500 steps amplify it.
TOLERANCES = {"psnr": 4.0, "ssim": 0.08, "mse": 0.002, "recovered": 0.2, "label_errors": 1.0, "label_accuracy": 0.2}


def figures(table):
    """The value and the chance level of each metric of a printed score."""
    rows = re.findall(r"^(\w+)(?: \(\w+\))? +([\d.e-]+) +\S+ to \S+ +([\d.e-]+) +(\d+)$", table, re.MULTILINE)
    return {name: (float(value), float(chance), int(n)) for name, value, chance, n in rows}


def test_the_example_prints_what_the_readme_shows():
    example, printed = EXAMPLE.search(README).groups()
    output = StringIO()
    with redirect_stdout(output):
        exec(example, {})
    expected, measured = figures(printed), figures(output.getvalue())
    assert expected.keys() == measured.keys() == TOLERANCES.keys()
    for name, (value, chance, n) in expected.items():
        assert measured[name][0] == pytest.approx(value, abs=TOLERANCES[name]), name
        assert measured[name][1:] == (pytest.approx(chance, rel=0.01), n), name


def test_every_paper_has_a_status_that_its_benchmarks_give():
    statuses = {match["paper"]: match["status"] for match in STATUS.finditer(README)}
    assert set(statuses) == set(PAPERS)
    overview = (ROOT / "benchmarks" / "README.md").read_text()
    for paper, status in statuses.items():
        row = next(line for line in overview.splitlines() if f"({paper}/README.md)" in line)
        assert f"| {status} |" in row, f"benchmarks/README.md has another status for {paper}"
