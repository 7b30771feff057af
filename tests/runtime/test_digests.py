"""A digest of code changes with the user's code, at any depth, and with nothing else."""

import functools
import importlib
import subprocess
import sys

import pytest
import torch
from torch import nn

from leakgauge.runtime.digests import code_digest, source_digest

MODEL = """
from torch import nn
import helper_of_test

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return helper_of_test.scale(self.inner(x))

def build():
    return Net()
"""
HELPER = """
def scale(x):
    from package_of_test import deep
    return deep.FACTOR * x
"""
DEEP = "from .deeper import FACTOR\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's project: a model, a module that it imports, and a package that is imported only inside a function."""
    (tmp_path / "model_of_test.py").write_text(MODEL)
    (tmp_path / "helper_of_test.py").write_text(HELPER)
    (tmp_path / "unrelated_of_test.py").write_text("")
    package = tmp_path / "package_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text(DEEP)
    (package / "deeper.py").write_text("FACTOR = 2\n")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("imported", [False, True])
def test_an_edit_anywhere_in_the_users_code_changes_the_digest(project, imported):
    module = importlib.import_module("model_of_test")
    model = nn.Sequential(nn.ReLU(), module.build())
    if imported:
        model(torch.ones(1, 2))  # runs the import inside the function
    objects = {"model": model, "factory": module.build, "class": module.Net, "partial": functools.partial(module.build)}
    before = {name: source_digest(value) for name, value in objects.items()}
    edited = ["model_of_test.py", "helper_of_test.py", "package_of_test/deep.py", "package_of_test/deeper.py"]
    for name in [*edited, "package_of_test/__init__.py"]:
        path = project / name
        content = path.read_text()
        path.write_text(content + "# edited\n")
        for kind, value in objects.items():
            assert source_digest(value) != before[kind], (name, kind)
        path.write_text(content)
        assert {kind: source_digest(value) for kind, value in objects.items()} == before
    (project / "unrelated_of_test.py").write_text("edited")
    assert {kind: source_digest(value) for kind, value in objects.items()} == before


def test_imports_are_found_when_the_folder_has_left_the_path(project):
    """The command line adds the working folder to the path only while it loads a factory."""
    module = importlib.import_module("model_of_test")
    before = source_digest(module.build)
    sys.path.remove(str(project))
    assert source_digest(module.build) == before


def test_what_an_object_holds_counts_too(project):
    module = importlib.import_module("model_of_test")

    class Holder:
        def __init__(self, *values):
            self.values = {"all": [*values]}

    def closure():
        return module.Net

    for value in (Holder(module.build), closure, functools.partial(len, module.build)):
        before = source_digest(value)
        content = (project / "helper_of_test.py").read_text()
        (project / "helper_of_test.py").write_text(content + "# edited\n")
        assert source_digest(value) != before
        (project / "helper_of_test.py").write_text(content)


def test_the_digest_is_the_same_in_another_process(project):
    module = importlib.import_module("model_of_test")
    program = (
        f"import sys; sys.path.insert(0, {str(project)!r}); import model_of_test; "
        "from leakgauge.runtime.digests import source_digest; print(source_digest(model_of_test.build()))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == source_digest(module.build())


MAIN = """
import helper_of_test
from leakgauge.runtime.digests import source_digest

FACTOR = {factor}

def twice(x):
    return {twice}

class Net:
    def forward(self, x):
        return helper_of_test.scale(twice(x) * FACTOR)

print(source_digest(Net()))
"""


def digest_in_main(project, as_file, factor=2, twice="2 * x"):
    program = MAIN.format(factor=factor, twice=twice)
    script = project / "script_of_test.py"
    script.write_text(program)
    command = [str(script)] if as_file else ["-c", program]
    environment = {"PYTHONPATH": ":".join([str(project), *sys.path])}
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, env=environment)
    return run.stdout.strip()


@pytest.mark.parametrize("as_file", [True, False])
def test_code_of_a_script_or_a_prompt_counts_with_all_that_it_uses(project, as_file):
    before = digest_in_main(project, as_file)
    assert digest_in_main(project, as_file) == before
    assert digest_in_main(project, as_file, factor=3) != before
    assert digest_in_main(project, as_file, twice="x + x") != before
    (project / "package_of_test" / "deeper.py").write_text("FACTOR = 3\n")
    assert digest_in_main(project, as_file) != before


def test_code_without_any_source_counts_by_its_bytecode():
    def make(text):
        names = {"__name__": "nowhere_of_test"}
        exec(text, names)
        return names

    first, same, other = (
        make(f"class Net:\n    width = {width}\n    def forward(self, x):\n        return x in {{1, 2, {width}}}\n")
        for width in (3, 3, 4)
    )
    assert source_digest(first["Net"]) == source_digest(same["Net"]) != source_digest(other["Net"])
    assert source_digest(first["Net"].forward) == source_digest(same["Net"].forward)
    assert source_digest(first["Net"].forward) != source_digest(other["Net"].forward)


def test_libraries_and_leakgauge_do_not_count():
    assert (
        source_digest(nn.Linear(1, 1), functools.partial(torch.zeros, 2), code_digest, sys, 3, None) == source_digest()
    )


def test_no_object_makes_it_raise():
    class Hostile:
        def __getattribute__(self, name):
            raise RuntimeError("no")

    recursive = []
    recursive.append(recursive)
    assert source_digest(Hostile(), recursive, print, object(), 1.5, type, lambda: 0)


def test_a_large_dataset_takes_no_time():
    assert source_digest([float(number) for number in range(1_000_000)]) == source_digest()
