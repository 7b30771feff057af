"""A guard against code of the user that ends the process while Leakgauge measures.

An exit with code 0 would count as a passed check, although nothing was measured. Inside the guard, ``sys.exit`` and
``os._exit`` raise an error of Leakgauge instead.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from leakgauge.core.errors import CodeExited

_EXIT = os._exit
_lock = threading.Lock()
_guards = 0


@contextmanager
def no_exit() -> Iterator[None]:
    """Raise :class:`~leakgauge.core.errors.CodeExited` if code inside the ``with`` block ends the process.

    Processes that the block forks may still end themselves.
    """
    _count(1)
    try:
        yield
    except SystemExit as problem:
        last = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename != __file__][-1]
        raise CodeExited(
            f"the work was ended by an exit with code {problem.code or 0} ({last.filename}, line {last.lineno}), so it "
            "was not measured. Remove sys.exit, exit or os._exit from the model, the data and the loss"
        ) from problem
    finally:
        _count(-1)


def end_process(code: int) -> NoReturn:
    """End this process at once with the given exit code, also while a guard is active.

    Args:
        code: The exit code of the process.
    """
    _EXIT(code)


def seal(code: int) -> None:
    """Make every later ``os._exit`` of this process, such as one that runs at exit, end it with the given exit code.

    Args:
        code: The exit code of the process.
    """
    process = os.getpid()
    os._exit = lambda other: _EXIT(code if os.getpid() == process else other)  # type: ignore[assignment]


def _count(change: int) -> None:
    """Count the guards that are active, and replace ``os._exit`` while there is at least one."""
    global _guards
    with _lock:
        _guards += change
        os._exit = _refusal(os.getpid()) if _guards else _EXIT  # type: ignore[assignment]


def _refusal(process: int) -> object:
    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            _EXIT(status)
        raise SystemExit(status)

    return refuse
