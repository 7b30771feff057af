"""Code of the user can neither end nor replace the process while Leakgauge measures."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from leakgauge.core.errors import CodeExited
from leakgauge.core.exits import no_exit
try:
    with no_exit():
        {code}
except CodeExited as problem:
    print(problem)
    sys.exit(7)
"""
TRUE = "'/bin/sh', ['sh', '-c', 'exit 0']"
WAYS = {
    "sys.exit": "sys.exit(0)",
    "os._exit": "os._exit(0)",
    "os.execv": f"os.execv({TRUE})",
    "os.execvp": f"os.execvp({TRUE})",
    "os.execve": f"os.execve({TRUE}, os.environ)",
    "os.execle": "os.execle('/bin/sh', 'sh', '-c', 'exit 0', os.environ)",
}


def run(code):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_process_is_neither_ended_nor_replaced(way):
    ended = run(WAYS[way])
    assert ended.returncode == 7
    assert "the work was ended by an exit with code 0" in ended.stdout


@pytest.mark.parametrize("way", ["os.execv", "os._exit"])
def test_processes_that_the_code_starts_may_end(way):
    code = f"child = os.fork()\n        if not child: {WAYS[way]}\n        print(os.waitpid(child, 0)[1])"
    ended = run(code)
    assert (ended.returncode, ended.stdout) == (0, "0\n")
    ended = run(f"print(os.spawnv(os.P_WAIT, {TRUE}))")
    assert (ended.returncode, ended.stdout) == (0, "0\n")


@pytest.mark.parametrize("way", ["os._exit", "os.execv"])
def test_functions_that_run_at_exit_do_not_change_the_exit_code(way):
    program = f"import atexit, os, sys; from leakgauge.core.exits import seal; atexit.register(lambda: {WAYS[way]})"
    for last, code in (("seal(1)", 1), ("", 0)):
        ended = subprocess.run([sys.executable, "-c", f"{program}; {last}"], check=False)
        assert ended.returncode == code
