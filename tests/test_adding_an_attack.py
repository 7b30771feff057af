"""The page on adding an attack is followed literally, in a copy of this repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "adding-an-attack.md").read_text(encoding="utf-8")
NEW = "src/leakgauge/attacks/papers/smooth_matching.py"
LIST = "tests/attacks/test_every_attack.py"
TABLE = "docs/attacks.md"
#: The first code block under each heading that names a file.
STEPS = dict(re.findall(r"^## \d[^\n]*`([^`\n]+)`\n.*?^```\w+\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE))


@pytest.fixture
def copy(tmp_path):
    """A copy of the parts of the repository that the page is about."""
    for folder in ("src", "docs", "tests/attacks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/shared.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def insert_after(file, line, addition):
    """Insert a line after the first one that starts with a given text."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    (place, *_) = (number for number, text in enumerate(lines, 1) if text.startswith(line))
    file.write_text("".join([*lines[:place], addition, *lines[place:]]), encoding="utf-8")


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_page_names_one_new_file_one_test_line_and_one_line_of_documentation():
    assert list(STEPS) == [NEW, LIST, TABLE]
    assert [len(STEPS[file].splitlines()) for file in (LIST, TABLE)] == [1, 1]
    assert len(STEPS[NEW].splitlines()) <= 60


def test_the_page_leads_to_an_attack_that_passes_its_tests(copy):
    (copy / NEW).write_text(STEPS[NEW], encoding="utf-8")
    insert_after(copy / LIST, "TRAITS = {", STEPS[LIST])
    insert_after(copy / TABLE, "|---", STEPS[TABLE])
    (arguments,) = re.findall(r"^python -m pytest (.*)$", TEXT, flags=re.MULTILINE)
    files, _, chosen = arguments.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files.split(), "-k", chosen.strip('"')]
    result = run(command, copy)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert int(re.findall(r"(\d+) passed", result.stdout)[0]) > 25
    code = "import leakgauge as lg; print(lg.__file__, lg.attacks.smooth_matching(steps=3).stop)"
    printed = run([sys.executable, "-c", code], copy).stdout
    assert printed.startswith(str(copy))
    assert "MaxSteps(steps=3)" in printed


def test_all_other_code_of_the_page_runs(tmp_path, monkeypatch):
    """The blocks are one file, so that classes can be pickled by the name of their module."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(blocks) >= 4
    (tmp_path / "page_on_attacks.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import page_on_attacks  # type: ignore[import-not-found]

    checks = [name for name in vars(page_on_attacks) if name.startswith("test_")]
    assert len(checks) == 3
    for name in checks:
        getattr(page_on_attacks, name)()
