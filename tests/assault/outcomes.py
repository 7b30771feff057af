"""Run the command line in a process of its own, and check how it ended."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

#: Signals that end a process by a fault of its own.
_CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}
#: The wording of errors that nobody foresaw.
_UNFORESEEN = re.compile(r"Traceback \(most recent call last\)|unexpected: please report it")
#: The largest number of lines of a refusal. A list of valid names may take several.
_MOST_LINES = 12


@dataclass(frozen=True)
class Ended:
    """How one command ended.

    Args:
        code: The exit code. It is negative for a process that a signal ended.
        output: The standard output.
        errors: The standard error.
        peak: The largest memory of the process and its workers in MiB.
    """

    code: int
    output: str
    errors: str
    peak: float


def run(*words: object, folder: Path, patience: float = 900.0, environment: dict[str, str] | None = None) -> Ended:
    """Run ``leakgauge`` with the given words in a process of its own.

    Args:
        words: The words of the command line.
        folder: The working directory.
        patience: The seconds after which the command counts as hanging. A busy machine needs minutes for a short one.
        environment: Environment variables to add.
    """
    command = [sys.executable, "-c", "from leakgauge.cli import main; main()", *map(str, words)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"hangs: {' '.join(map(str, words))} did not end in {patience:.0f} s") from None
        peak = resource_peak()
        output.seek(0)
        errors.seek(0)
        return Ended(process.returncode, output.read(), errors.read(), peak)


def resource_peak() -> float:
    """Return the largest memory of any process that this process has waited for, in MiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def assert_foreseen(ended: Ended) -> None:
    """Check that a command ended in a way that its authors foresaw: no crash, no traceback, no request to report."""
    assert ended.code not in _CRASHES, f"crashed with signal {-ended.code}: {ended.errors[-500:]}"
    text = ended.output + ended.errors
    assert not _UNFORESEEN.search(text), text[-1500:]


def assert_refused(ended: Ended, *words: str) -> None:
    """Check that a command refused its input with exit code 2 and few words, which include the given ones."""
    assert_foreseen(ended)
    assert ended.code == 2, f"exit code {ended.code}: {ended.output[-500:]}{ended.errors[-500:]}"
    assert ended.errors.startswith("leakgauge: "), ended.errors[:300]
    assert len(ended.errors.strip().splitlines()) <= _MOST_LINES, ended.errors
    for word in words:
        assert word in ended.errors, f"{word!r} is missing in: {ended.errors}"
