"""Every example in a docstring prints what it says, and importing the metrics is quick."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import leakgauge.evaluation
import leakgauge.models

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (leakgauge.evaluation, leakgauge.models)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", [*MODULES, "leakgauge.models"])
def test_doctests(name):
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0


def test_heavy_packages_wait_until_they_are_needed():
    code = (
        "import sys, leakgauge.evaluation, leakgauge.models\n"
        "print([name for name in ('torchmetrics', 'scipy', 'torchvision') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
