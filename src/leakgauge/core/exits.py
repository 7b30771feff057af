"""A guard against code of the user that ends the process while Leakgauge measures.

An exit with code 0 would count as a passed check, although nothing was measured. Inside the guard, ``sys.exit``,
``os._exit`` and the functions that replace the process, such as ``os.execv``, raise an error of Leakgauge instead.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from leakgauge.core.errors import CodeExited

_EXIT = os._exit
#: The functions that replace the process by another program. All others of Python call one of them.
_REPLACE: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in ("execv", "execve")}
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
            "was not measured. Remove sys.exit, exit, os._exit or os.exec from the model, the data and the loss"
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
    """Let this process end with the given exit code, even if functions that run at exit end or replace the process.

    Args:
        code: The exit code of the process.
    """
    process = os.getpid()

    def sealed(end: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: _EXIT(code) if os.getpid() == process else end(*arguments)

    os._exit = sealed(_EXIT)
    for name, replace in _REPLACE.items():
        setattr(os, name, sealed(replace))


def _count(change: int) -> None:
    """Count the guards that are active, and replace the functions that end the process while there is at least one."""
    global _guards
    with _lock:
        _guards += change
        os._exit = _refusal(os.getpid(), _EXIT) if _guards else _EXIT
        for name, replace in _REPLACE.items():
            setattr(os, name, _refusal(os.getpid(), replace) if _guards else replace)


def _refusal(process: int, end: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises an error in this process, and calls ``end`` in processes that it forks.

    Args:
        process: The id of this process.
        end: The function that ends or replaces a process.
    """

    def refuse(*arguments: Any) -> NoReturn:
        if os.getpid() != process:
            end(*arguments)
        raise SystemExit(arguments[0] if end is _EXIT else 0)

    return refuse
