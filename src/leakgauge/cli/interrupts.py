"""Ctrl-C while packages are imported.

Some packages, such as torch and scipy, end the process or report a failed import if Ctrl-C arrives while their C++ code
is initialised. Ctrl-C is therefore held back until the import is over.
"""

from __future__ import annotations

import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

#: The folders of installed packages. Modules of the user are elsewhere, and Ctrl-C ends their import at once.
PACKAGES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))


@contextmanager
def interrupt_later() -> Iterator[None]:
    """Hold Ctrl-C back in the ``with`` block and pass it on at the end of the block. A second one is not held."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # Ctrl-C is ignored, or belongs to code outside Python
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)
        if len(held) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        before(held[0], None)  # raises KeyboardInterrupt, or counts Ctrl-C


class _Packages(MetaPathFinder):
    """The finder of installed packages whose import holds Ctrl-C back, with the packages that they import."""

    def __init__(self) -> None:
        self.importing = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module with the other finders, and hold Ctrl-C back while it is executed."""
        if self.importing:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is None:
                continue
            if spec.loader is not None and (spec.origin or "").startswith(PACKAGES):
                with suppress(AttributeError):  # a loader written in C
                    spec.loader.exec_module = self._held(spec.loader.exec_module)  # type: ignore[method-assign,assignment]
            return spec
        return None

    def _held(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def held(module: ModuleType) -> None:
            if self.importing:
                execute(module)
                return
            with interrupt_later():
                self.importing = True
                try:
                    execute(module)
                finally:
                    self.importing = False

        return held


@contextmanager
def whole_imports() -> Iterator[None]:
    """Let Ctrl-C wait for the end of each import of an installed package inside the ``with`` block."""
    finder = _Packages()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
