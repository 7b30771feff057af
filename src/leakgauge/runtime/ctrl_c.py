"""Ctrl-C while tasks run.

The first Ctrl-C ends the running tasks at their next progress report, so that a task can return its best result so far.
A second Ctrl-C ends them at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: The sentence that is shown after the first Ctrl-C.
SENTENCE = "Ctrl-C: what runs ends after its step, and its best result so far is kept. Press again to end at once."


class Stop:
    """The number of times that Ctrl-C was pressed.

    Args:
        presses: The number of times so far.
    """

    def __init__(self, presses: int = 0) -> None:
        self.presses = presses

    @property
    def requested(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.presses > 0

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed."""
        if self.requested:
            raise KeyboardInterrupt


@contextmanager
def stopping(*, sentence: str = "") -> Iterator[Stop]:
    """Yield an object that counts Ctrl-C inside the ``with`` block. The first Ctrl-C raises nothing, others do.

    Nothing is counted in other threads than the main thread, or if the program ignores Ctrl-C.

    Args:
        sentence: The sentence that is shown on standard error after the first Ctrl-C.
    """
    stop = Stop()
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(before):
        yield stop
        return
    raise_interrupt = before

    def count(number: int, frame: FrameType | None) -> None:
        stop.presses += 1
        if stop.presses > 1:
            raise_interrupt(number, frame)
        elif sentence:
            with contextlib.suppress(OSError, ValueError):  # a buffered stream may be in the middle of another write
                os.write(sys.stderr.fileno(), f"{sentence}\n".encode())

    signal.signal(signal.SIGINT, count)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
