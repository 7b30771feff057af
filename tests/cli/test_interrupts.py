"""Ctrl-C waits for the end of the import of an installed package, and only for that."""

import os
import signal
import sys
import threading
from importlib import import_module

import pytest

from leakgauge.cli import interrupts
from leakgauge.cli.interrupts import interrupt_later, whole_imports
from leakgauge.runtime.ctrl_c import stopping


def press():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that is interrupted in the middle of its import."""
    (tmp_path / "halfway").mkdir()
    inside = "from tests.cli.test_interrupts import press; press(); whole = True"
    (tmp_path / "halfway" / "__init__.py").write_text("from halfway import inner; whole = True")
    (tmp_path / "halfway" / "inner.py").write_text(inside)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interrupts, "PACKAGES", (str(tmp_path),))
    yield tmp_path
    for name in ("halfway", "halfway.inner"):
        sys.modules.pop(name, None)


def test_an_import_is_finished_before_the_interrupt(package):
    with pytest.raises(KeyboardInterrupt), whole_imports():
        import_module("halfway")
    assert sys.modules["halfway.inner"].whole
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_is_only_counted_leaves_an_import_whole(package):
    with whole_imports(), stopping() as stop:
        assert import_module("halfway").whole
    assert stop.presses == 1


def test_the_users_own_modules_are_interrupted_at_once(package, monkeypatch):
    monkeypatch.setattr(interrupts, "PACKAGES", ("/nowhere",))
    with pytest.raises(KeyboardInterrupt), whole_imports():
        import_module("halfway")
    assert "halfway" not in sys.modules


def test_afterwards_imports_are_as_before():
    before = list(sys.meta_path)
    with whole_imports():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def test_a_second_interrupt_is_not_held():
    seen = []

    def impatient():
        with interrupt_later():
            press()
            seen.append("held")
            press()
            seen.append("never")

    with pytest.raises(KeyboardInterrupt):
        impatient()
    assert seen == ["held"]


def test_ignored_interrupts_and_other_threads_are_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_later():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    done = []

    def elsewhere():
        with interrupt_later():
            done.append(1)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert done
