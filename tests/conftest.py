import signal
import sys

import pytest
import torch

# Tests run in several processes, one a core: more threads in each would only wait for each other.
torch.set_num_threads(1)
# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
