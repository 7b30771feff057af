"""The page on adding a defence: its file is discovered, its test line passes, its example runs."""

import re
import sys
from pathlib import Path

import pytest

from leakgauge import defences
from leakgauge.core.errors import InvalidInput
from tests.federation.defences import test_every_defence as every

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "adding-a-defence.md").read_text()
FILE, TEST_LINE, EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(DOC_LINE,) = re.findall(r"```markdown\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Add the page's defence to the package for one test."""
    (tmp_path / "sign_flips.py").write_text(FILE)
    monkeypatch.setattr(defences, "__path__", [*defences.__path__, str(tmp_path)])
    monkeypatch.setattr(defences, "DEFENCES", registered := defences._registered())
    yield registered
    sys.modules.pop("leakgauge.federation.defences.sign_flips")
    vars(defences).pop("sign_flips")


def test_a_new_file_is_all_that_the_package_needs(added):
    assert list(added) == sorted([*every.DEFENCES, "sign_flips"])
    assert defences.SignFlips is added["sign_flips"]
    assert defences.build("sign_flips", probability=0.2) == defences.SignFlips(0.2)


def test_the_test_line_passes(added, monkeypatch):
    monkeypatch.setattr(every, "DEFENCES", added)
    case = eval(TEST_LINE, vars(every))
    every.test_the_repr_is_the_record(case)
    every.test_gradients_come_back_changed_in_the_same_form_and_the_given_ones_stay(case)
    every.test_every_gradient_defence_acts_at_every_place(case, "fedavg", "samples")
    every.test_impossible_strengths_are_refused(case, -0.1)


def test_the_example_runs(added):
    scope: dict[str, object] = {}
    exec(EXAMPLE, scope)
    assert "SignFlips(on='samples', probability=0.1)" in str(scope["observation"])


def test_the_doc_line_has_the_columns_of_the_table():
    lines = (ROOT / "docs" / "defences.md").read_text().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert {name: rows[name].count("|") for name in every.DEFENCES} == dict.fromkeys(
        every.DEFENCES, DOC_LINE.count("|")
    )


def test_two_defences_of_one_name_are_refused(tmp_path, monkeypatch):
    (tmp_path / "copycat.py").write_text(FILE.replace('"sign_flips"', '"clipping"'))
    monkeypatch.setattr(defences, "__path__", [*defences.__path__, str(tmp_path)])
    try:
        with pytest.raises(InvalidInput, match="Clipping and SignFlips are both named 'clipping'"):
            defences._registered()
    finally:
        sys.modules.pop("leakgauge.federation.defences.copycat")
        vars(defences).pop("copycat", None)
