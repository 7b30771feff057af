import math
import signal
import sys

import pytest
import torch

from leakgauge.runtime import engines

# Tests run in several processes, one a core: more threads in each would only wait for each other.
torch.set_num_threads(1)
# On a busy machine, the engine "auto" would move short work to new processes, which import everything once more.
engines.START = math.inf
# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the long forms too, such as those of tests/assault")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: a test of a long form, which runs with --long only")


def pytest_collection_modifyitems(config, items):
    """Leave out the long forms. They are deselected and not skipped, so that a skipped test is always an exception."""
    if config.getoption("--long"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs a command in this process, and returns its exit code, its output and its errors."""
    from leakgauge import cli

    monkeypatch.setattr(cli.screen, "width", 200)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["leakgauge", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output = capsys.readouterr()
        return int(stop.value.code or 0), output.out, output.err

    return run
