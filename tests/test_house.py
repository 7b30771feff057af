"""The rules of the house: short functions, docstrings in plain form, and module names that say where one is."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "leakgauge"
ROOMS = {
    "attacks", "cli", "core", "data", "evaluation", "federation", "models", "reports", "reproduction", "runtime",
    "workflows",
}  # fmt: skip
LONGEST = 60
#: Module names that stand in several rooms because they are the same idea there.
SAME_IDEA = {
    "__init__", "audit", "base", "captures", "frontier", "labels", "linear", "matching", "registry", "stopping",
    "together",
}  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


@cache
def tree_of(path):
    """Return the syntax tree of a file, which several tests look at."""
    return ast.parse(path.read_text())


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def code_lines(function):
    """Count the lines of a function without its docstring."""
    total = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return total
    return total - (function.body[0].end_lineno - function.body[0].lineno + 1)


def test_the_package_has_these_rooms_and_no_others():
    entries = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert entries == ROOMS | {"__init__.py", "py.typed", "testing.py"}


def test_no_function_is_longer_than_a_screen():
    long = [
        f"{path.relative_to(SOURCE)}: {function.name} has {code_lines(function)} lines"
        for path in FILES
        for function in functions(tree_of(path))
        if code_lines(function) > LONGEST
    ]
    assert long == []


def test_no_module_name_stands_in_two_rooms_for_two_ideas():
    rooms = defaultdict(set)
    for path in FILES:
        rooms[path.stem].add(path.relative_to(SOURCE).parts[0])
    assert {name for name, places in rooms.items() if len(places) > 1} <= SAME_IDEA


@pytest.mark.parametrize("word", ["What", "How", "Where", "Who", "When"])
def test_no_docstring_begins_as_a_question(word):
    wrong = []
    for path in FILES:
        tree = tree_of(path)
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text is not None and text.split()[0] == word:
                wrong.append(f"{path.relative_to(SOURCE)}: {text.splitlines()[0]}")
    assert wrong == []


#: The modules that may create files and folders: the one for all, and the results of benchmarks on public data.
WRITERS = {"core/container.py", "reproduction/results.py"}
#: The calls that create a file or a folder with the permissions of any file.
CREATES = {
    "mkdir", "makedirs", "mkdtemp", "mkstemp", "write_text", "write_bytes", "save_file", "savez", "to_csv", "touch",
    "NamedTemporaryFile",
}  # fmt: skip


def created(tree):
    """The names of calls that create files, and the modes of ``open`` that do."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        modes = [value.value for value in node.args if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        if name in CREATES or (
            name == "open" and any(re.fullmatch("[waxrbt+]+", mode) and set(mode) & set("wax+") for mode in modes)
        ):
            yield name


def test_files_are_written_in_one_place_that_keeps_them_private():
    found = {
        str(path.relative_to(SOURCE)): names
        for path in FILES
        if (names := sorted(created(ast.parse(path.read_text())))) and str(path.relative_to(SOURCE)) not in WRITERS
    }
    assert found == {
        "runtime/memory.py": ["write_text"],
        "runtime/on_ray.py": ["mkdtemp", "write_text"],
    }  # the kernel's; mode 0700
