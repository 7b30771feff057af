"""Finished work is stored whole or not at all, and never returned for other code."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time

import pytest
import torch

from leakgauge.core.container import write_container
from leakgauge.core.errors import FileError, FutureVersion
from leakgauge.core.measure import Measure
from leakgauge.runtime import Task
from leakgauge.runtime import cache as cache_module
from leakgauge.runtime.cache import FILE, TENSORS, Cache, code_digest, key_of, run_cached
from tests.runtime.work import noisy_sum

HOURS = 7200


def age(path):
    """Make a file look as if it had been written two hours ago."""
    os.utime(path, (time.time() - HOURS,) * 2)


def test_what_is_put_comes_back(tmp_path):
    cache = Cache(tmp_path / "runs")
    definition = {"a": 1}
    assert definition not in cache
    assert cache.get(definition) is None
    measure = Measure("psnr", 20.5, high=float("inf"))
    cache.put(definition, {"psnr": measure}, {"x": torch.arange(3.0)})
    cache.put("plain", {"z": [1, 2], "a": (3,)})
    again = Cache(tmp_path / "runs")
    entry = again.get(definition)
    assert entry.document["psnr"].to_row() == measure.to_row()
    assert entry.tensors["x"].tolist() == [0, 1, 2]
    assert repr(again.get("plain").document) == "{'z': [1, 2], 'a': (3,)}"  # also the order is kept
    assert again.get("plain").tensors == {}
    assert again.keys() == [key_of(definition), key_of("plain")]
    assert len(again) == 2
    again.forget(definition)
    assert definition not in again
    assert not list((tmp_path / "runs" / TENSORS).iterdir())


def test_nobody_else_can_read_a_cache(tmp_path):
    before = os.umask(0)
    try:
        cache = Cache(tmp_path / "runs")
        with cache._open(writing=True) as connection:
            connection.execute("create table other (value)")
            assert (tmp_path / "runs" / f"{FILE}-journal").exists()
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs").iterdir()}
        cache.put("a", {}, {"x": torch.zeros(1)})
    finally:
        os.umask(before)
    assert modes == {FILE: 0o600, f"{FILE}-journal": 0o600, TENSORS: 0o700}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs" / TENSORS).iterdir()] == [0o600]
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o700


SAMPLES = {"x": torch.ones(2, 3), "loss": torch.zeros(1)}


def tensors_of(cache, definition):
    return set(cache.get(definition).tensors)


def test_samples_can_be_forgotten_and_the_rest_is_kept(tmp_path):
    cache = Cache(tmp_path)
    cache.put("figures", {"n": 1}, {"loss": torch.zeros(1)}, samples=["x"])
    cache.put("both", {"n": 2}, SAMPLES, samples=["x"])
    cache.put("model", {"n": 3}, SAMPLES)  # all of it
    cache.put("damaged", {"n": 4}, SAMPLES, samples=["x"])
    names = {key: tmp_path / TENSORS / f"{key_of(key)}.safetensors" for key in ("both", "model", "damaged")}
    names["damaged"].write_bytes(b"damaged")
    orphan = tmp_path / TENSORS / f"{'a' * 32}.safetensors"
    orphan.write_bytes(b"interrupted")
    assert set(cache.forget_samples()) == {*names.values(), orphan}
    assert cache.get("figures").tensors.keys() == cache.get("both").tensors.keys() == {"loss"}
    assert cache.get("both").document == {"n": 2}
    assert cache.get("model") is None
    assert cache.get("damaged") is None
    assert cache.forget_samples() == []


def test_a_cache_without_samples_stores_none_and_removes_those_it_finds(tmp_path):
    Cache(tmp_path).put("before", {}, SAMPLES, samples=["x"])
    cache = Cache(tmp_path, samples=False)
    cache.put("after", {"n": 1}, SAMPLES, samples=["x"])
    cache.put("only samples", {"n": 2}, {"x": SAMPLES["x"]}, samples=["x"])
    cache.put("model", {}, SAMPLES)
    assert tensors_of(cache, "before") == tensors_of(cache, "after") == {"loss"}
    assert cache.get("only samples").document == {"n": 2}
    assert cache.get("model") is None
    assert len(list((tmp_path / TENSORS).iterdir())) == 2


def test_keys_depend_on_every_value_and_on_no_order():
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1})
    assert len({key_of(one) for one in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": [1]}, {"a": "1"})}) == 5


def test_results_of_other_code_are_not_returned(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    cache.put({"a": 1}, "before")
    monkeypatch.setattr("leakgauge.runtime.cache.code_digest", lambda: "edited")
    assert {"a": 1} not in cache
    assert cache.get({"a": 1}) is None
    cache.put({"a": 1}, "after")
    monkeypatch.undo()
    assert cache.get({"a": 1}).document == "before"
    assert len(cache) == 2


def test_keys_are_the_same_in_another_process():
    program = "from leakgauge.runtime.cache import code_digest, key_of; print(code_digest(), key_of({'a': [1, 'b']}))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.split() == [code_digest(), key_of({"a": [1, "b"]})]


def test_only_old_leftovers_of_ours_are_removed(tmp_path):
    cache = Cache(tmp_path)
    cache.put("complete", {}, {"x": torch.zeros(1)})
    folder = tmp_path / TENSORS
    key = "0123456789abcdef" * 2
    ours = [folder / f"{key}.safetensors", folder / f".{key}.safetensors.123.456"]
    young = [folder / f"{key[::-1]}.safetensors", folder / f".{key[::-1]}.safetensors.123.456"]
    foreign = [folder / name for name in ("notes.txt", "model.safetensors", ".hidden", f"{key}.safetensors.bak")]
    foreign.append(folder / f"{'f' * 32}.safetensors")  # of a program that names files as we do
    for path in (*ours, *young, *foreign):
        path.write_bytes(b"not complete")
    for path in reversed(ours):
        write_container(folder / f"{key}.safetensors", "result", 2, {"key": key}, {"x": torch.zeros(1)}).rename(path)
    complete = folder / f"{key_of('complete')}.safetensors"
    for path in (*ours, *foreign, complete):
        age(path)
    Cache(tmp_path)
    assert set(folder.iterdir()) == {complete, *young, *foreign}


def test_a_damaged_entry_is_removed(tmp_path):
    cache = Cache(tmp_path)
    cache.put("a", {}, {"x": torch.zeros(1)})
    (tmp_path / TENSORS / f"{key_of('a')}.safetensors").write_bytes(b"damaged")
    cache.put("b", {"value": 1})
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("update results set document = ? where key = ?", ('{"$dataclass": "os:stat"', key_of("b")))
    connection.close()
    for definition in ("a", "b"):
        assert cache.get(definition) is None
        assert definition not in cache


def test_files_that_cannot_be_used_are_refused_in_words(tmp_path):
    (tmp_path / FILE).write_bytes(b"this is no database, but it is long enough to be one" * 40)
    with pytest.raises(FileError, match="cannot be used"):
        Cache(tmp_path)
    other = Cache(tmp_path / "other")
    with other._open() as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(FutureVersion, match="Upgrade it"):
        Cache(tmp_path / "other")


WRITER = """
import sys, torch
from leakgauge.runtime.cache import Cache
cache = Cache(sys.argv[1])
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    if number not in cache:
        cache.put(number, {"n": number}, {"x": torch.full((50_000,), float(number))})
        print(number, flush=True)
"""


def writer(*arguments):
    command = [sys.executable, "-c", WRITER, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check(cache, numbers):
    for number in numbers:
        entry = cache.get(number)
        assert entry.document == {"n": number}
        assert float(entry.tensors["x"][-1]) == number


def test_kill_minus_nine_loses_at_most_what_was_being_written(tmp_path):
    for wait in (0.05, 0.11, 0.2):
        process = writer(tmp_path, 0, 1000)
        assert process.stdout.readline()  # it is at work
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        written = [int(line) for line in process.stdout.read().split()]
        process.wait()
        process.stdout.close()
        for path in (tmp_path / TENSORS).iterdir():
            age(path)
        cache = Cache(tmp_path)
        check(cache, written)
        assert {path.stem for path in (tmp_path / TENSORS).iterdir()} == set(cache.keys())


#: A writer that waits a moment between the file of an entry and its row, so that writers without a lock would mix the
#: files and the rows of each other.
SLOW_WRITER = """
import os, random, sys, time, torch
from leakgauge.runtime import cache as module
write = module.write_container
module.write_container = lambda *arguments: (write(*arguments), time.sleep(random.uniform(0.0, 0.002)))
cache = module.Cache(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(128):
    cache.put(number, {"n": number, "by": os.getpid()}, {"x": torch.full((500,), float(number))})
"""


def test_two_writers_of_the_same_results_and_a_reader_lose_nothing(tmp_path):
    command = [sys.executable, "-c", SLOW_WRITER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.close()  # both begin
    while any(process.poll() is None for process in processes):
        cache = Cache(tmp_path)
        for number in range(128):
            entry = cache.get(number)
            assert entry is None or float(entry.tensors["x"][0]) == entry.document["n"] == number
    for process in processes:
        process.stdout.close()
        assert process.returncode == 0
    assert len(cache) == 128
    assert all(cache.get(number).document["by"] in {process.pid for process in processes} for number in range(128))


def test_a_reader_does_not_remove_what_is_being_replaced(tmp_path, monkeypatch):
    """Another process replaces an entry after the reader has read its row and before the reader opens its file."""
    cache, read = Cache(tmp_path), cache_module.read_container
    cache.put("a", {"by": 1}, {"x": torch.zeros(1)})

    def read_late(*arguments):
        monkeypatch.undo()
        Cache(tmp_path).put("a", {"by": 2}, {"x": torch.ones(1)})
        return read(*arguments)

    monkeypatch.setattr(cache_module, "read_container", read_late)
    assert cache.get("a").document == {"by": 2}
    assert cache.get("a").tensors["x"].item() == 1


# Sweeps


def counted(number, path, report):
    """Leave a line for each call."""
    with path.open("a") as file:
        file.write(f"{number}\n")
    return {"measure": Measure("psnr", float(number), high=float("inf")), "pair": (1, None), 2: "two"}


def tasks_of(path, numbers):
    return [Task(f"task {number}", counted, {"number": number, "path": path}) for number in numbers]


def test_a_sweep_runs_only_what_is_missing(tmp_path):
    calls, folder = tmp_path / "calls", tmp_path / "cache"
    tasks = tasks_of(calls, range(3))
    definitions = {task.name: {"number": number} for number, task in enumerate(tasks)}
    first = dict(zip((task.name for task in tasks[:2]), run_cached(tasks[:2], definitions, folder), strict=True))
    again = list(run_cached(tasks, definitions, folder, engine="in-process"))
    assert [task.name for task, _ in again] == ["task 0", "task 1", "task 2"]
    assert calls.read_text().split() == ["0", "1", "2"]
    for task, result in again:
        assert repr(result) == repr(first.get(task.name, (task, result))[1])
        assert isinstance(result["measure"], Measure)
        assert result["measure"].high == float("inf")
        assert result["pair"] == (1, None)
        assert result[2] == "two"
    list(run_cached(tasks, {**definitions, "task 1": {"number": 1, "other": True}}, folder))
    assert calls.read_text().split() == ["0", "1", "2", "1"]


def test_without_a_folder_nothing_is_cached(tmp_path):
    tasks = [Task("sum", noisy_sum, {"seed": 0})]
    (first,), (second,) = (list(run_cached(tasks, {}, None)) for _ in range(2))
    assert first == second
    assert not list(tmp_path.iterdir())
