"""The examples of all docstrings print what they show."""

import doctest
import importlib
import pkgutil

import pytest

import leakgauge
from leakgauge.core.errors import MissingExtra

MODULES = ["leakgauge", *(module.name for module in pkgutil.walk_packages(leakgauge.__path__, "leakgauge."))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name):
    try:
        module = importlib.import_module(name)
    except MissingExtra as missing:
        pytest.skip(str(missing))
    assert doctest.testmod(module).failed == 0
