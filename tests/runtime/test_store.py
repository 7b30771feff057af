"""Finished work is kept whole or not at all, also when the process is killed in the middle."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from leakgauge.core.errors import FileError, FutureVersion
from leakgauge.runtime.store import FILE, TENSORS, Store, key_of


def test_what_is_put_comes_back(tmp_path):
    store = Store(tmp_path / "runs")
    key = key_of({"a": 1})
    assert key not in store
    assert store.get(key) is None
    store.put(key, {"a": 1}, {"psnr": 20.5}, {"x": torch.arange(3.0)})
    store.put("plain", {}, {"b": [1, 2]}, {})
    again = Store(tmp_path / "runs")
    document, tensors = again.get(key)
    assert document == {"psnr": 20.5}
    assert tensors["x"].tolist() == [0, 1, 2]
    assert again.get("plain") == ({"b": [1, 2]}, {})
    assert again.keys() == [key, "plain"]
    assert len(again) == 2


def test_keys_depend_on_every_value_and_on_no_order():
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1})
    assert len({key_of(one) for one in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": [1]}, {"a": "1"})}) == 5


def test_leftovers_of_interrupted_runs_are_removed(tmp_path):
    store = Store(tmp_path)
    store.put("kept", {}, {}, {"x": torch.zeros(1)})
    (tmp_path / TENSORS / ".half.safetensors.tmp").write_bytes(b"half")
    (tmp_path / TENSORS / "orphan.safetensors").write_bytes(b"no row")
    Store(tmp_path)
    assert [path.name for path in (tmp_path / TENSORS).iterdir()] == ["kept.safetensors"]


def test_damaged_tensors_are_made_again(tmp_path):
    store = Store(tmp_path)
    store.put("a", {}, {}, {"x": torch.zeros(1)})
    (tmp_path / TENSORS / "a.safetensors").write_bytes(b"damaged")
    assert store.get("a") is None
    assert "a" not in store


def test_files_that_cannot_be_used(tmp_path):
    (tmp_path / FILE).write_bytes(b"this is no database, but it is long enough to be one" * 40)
    with pytest.raises(FileError, match="cannot be used"):
        Store(tmp_path)
    other = Store(tmp_path / "other")
    with other._open() as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(FutureVersion, match="upgrade"):
        Store(tmp_path / "other")


WRITER = """
import sys, torch
from leakgauge.runtime.store import Store
store = Store(sys.argv[1])
for number in range(1000):
    key = f"k{number}"
    if key not in store:
        store.put(key, {}, {"n": number}, {"x": torch.full((50_000,), float(number))})
        print(number, flush=True)
"""


def test_kill_minus_nine_loses_at_most_what_was_being_written(tmp_path):
    for wait in (0.05, 0.11, 0.2):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline()  # it is at work
        time.sleep(wait)
        os.kill(writer.pid, signal.SIGKILL)
        said = [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        writer.stdout.close()
        store = Store(tmp_path)
        for number in said:
            document, tensors = store.get(f"k{number}")
            assert document == {"n": number}
            assert float(tensors["x"][-1]) == number
        assert {path.stem for path in (tmp_path / TENSORS).iterdir()} == set(store.keys())
