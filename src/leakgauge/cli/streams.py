"""Standard streams whose reader may stop reading, as ``head`` does. The work and its exit code do not depend on it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from leakgauge.core.errors import FileError


class _Tolerant:
    """A stream that drops its text once nobody reads it any more.

    Args:
        stream: The stream.
        required: Whether it is an error if the stream cannot be written, such as to a full disk.
    """

    def __init__(self, stream: TextIO, *, required: bool) -> None:
        self._stream, self._required = stream, required

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it if nobody reads it."""
        self._tolerate(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what was kept back, or drop it if nobody reads it."""
        self._tolerate(self._stream.flush)

    def _tolerate(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as problem:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            if self._required and not isinstance(problem, BrokenPipeError):
                raise FileError(f"the output cannot be written ({problem.strerror}). Send it elsewhere") from problem


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Let the readers of standard output and standard error stop reading inside the ``with`` block."""
    before = sys.stdout, sys.stderr
    # Python has no stream if the shell closed it.
    output, errors = (io.StringIO() if stream is None else stream for stream in before)
    sys.stdout = _Tolerant(output, required=True)
    sys.stderr = _Tolerant(errors, required=False)
    try:
        yield
    finally:
        with suppress(FileError):  # after another error
            flush()
        sys.stdout, sys.stderr = before


def flush() -> None:
    """Write what standard output and standard error keep back."""
    sys.stdout.flush()
    sys.stderr.flush()
