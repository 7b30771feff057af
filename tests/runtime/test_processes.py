"""A process that dies, hangs or runs out of memory costs the progress of one task, and leaves nothing behind."""

import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from multiprocessing.context import SpawnProcess

import pytest

from leakgauge.core.errors import InvalidInput, LeakgaugeError, TasksFailed, UnknownName
from leakgauge.runtime import Task, memory, run_tasks
from leakgauge.runtime.processes import usable_cores
from leakgauge.runtime.tasks import portable
from tests.runtime.work import (
    LONG,
    PYTHONPATH,
    TASKS,
    Noted,
    adds,
    alive,
    always_dies,
    children,
    eventually,
    exits,
    fails,
    mistaken,
    not_the_first_time,
    one_way,
    sleeps,
    slow_sum,
    takes,
    unpicklable,
)


def test_there_is_a_core():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(autouse=True)
def nothing_left():
    """Processes that a test leaves running are an error."""
    before = set(multiprocessing.active_children())
    yield
    left = set(multiprocessing.active_children()) - before
    for process in left:
        process.kill()
    assert not left


def processes(tasks, jobs=2):
    watch = Noted()
    return {task.name: result for task, result in run_tasks(tasks, engine="processes", jobs=jobs, watch=watch)}, watch


LOSSES = {
    "killed": r"its worker was killed \(SIGKILL\)",
    "exits": "its worker ended with exit code 7",
    "hangs": "the task reported nothing for 2 seconds",
    "memory": "MemoryError",
    "limit": "RuntimeError: .*can't allocate memory",
    "disk": "OSError: the disk is away",
}


LIMITS = {"hangs": 2}


@linux
def test_a_task_is_restarted_whatever_ended_its_worker(tmp_path):
    tasks = [
        Task(how, not_the_first_time, {"path": str(tmp_path / how), "how": how}, limit=LIMITS.get(how), kind=how)
        for how in LOSSES
    ]
    results, watch = processes([*tasks, TASKS[0]])
    assert results.pop("seed 0")
    assert results == {how: f"after {how}" for how in LOSSES}
    why = dict(watch.of("again"))
    assert why.keys() == LOSSES.keys()
    for how, words in LOSSES.items():
        assert re.match(words, why[how]), why[how]


@pytest.fixture(scope="module")
def failed_sweep():
    """The error of one sweep with all kinds of failures, because starting processes takes long."""
    tasks = [
        Task("deadly", always_dies, tries=2),
        Task("broken", fails),
        Task("exiting", exits),
        Task("mistaken", mistaken, {"name": "x"}),
        Task("unpicklable", unpicklable),
        Task("one way", one_way),
        Task("local", lambda report: 1),
        *TASKS[:2],
    ]
    results = []
    with pytest.raises(TasksFailed) as raised:
        results.extend(task.name for task, _ in run_tasks(tasks, engine="processes", jobs=2))
    assert sorted(results) == ["seed 0", "seed 1"]  # the others are done
    return raised.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "^ValueError: task went wrong$"),
        ("exiting", r"^the work was ended by an exit with code 0 .* so it was not measured"),
        ("deadly", r"^its worker was killed \(SIGKILL\).* \(2 times\)$"),
        ("mistaken", "^there is no thing 'x' "),
        ("unpicklable", "the result cannot be sent to the driver"),
        ("one way", "the result cannot be read by the driver"),
        ("local", "the task 'local' cannot be sent to another process"),
    ],
)
def test_a_task_that_always_fails_is_listed_with_its_error(failed_sweep, name, words):
    assert re.search(words, failed_sweep.failures[name])


def test_an_error_keeps_its_type_or_at_least_its_message():
    assert isinstance(portable(ValueError("x")), ValueError)
    assert "ValueError: x" in portable(ValueError("x")).__notes__[0]
    mistake = portable(UnknownName("thing", "x", ["other"]))
    assert isinstance(mistake, LeakgaugeError)
    assert str(mistake) == "there is no thing 'x' (known: other)"


def test_shared_arguments_must_be_picklable():
    with pytest.raises(InvalidInput, match="the arguments that all tasks share cannot be sent to another process"):
        list(run_tasks(TASKS, engine="processes", jobs=2, common={"lock": threading.Lock()}))


def test_a_script_without_a_guard_gets_advice(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from leakgauge.runtime import run_tasks\n"
        "from tests.runtime.work import TASKS\n"
        "list(run_tasks(TASKS, engine='processes', jobs=2))\n"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    assert "put the work under if __name__ == '__main__'" in run.stderr.splitlines()[-1]


class Interrupting(Noted):
    def step(self, task, step, total, loss):
        super().step(task, step, total, loss)
        if task.name == "long":
            raise KeyboardInterrupt


def test_ctrl_c_ends_the_workers():
    """No task continues, and the driver waits for none."""
    watch = Interrupting()
    tasks = [Task("long", sleeps, {"seconds": LONG}), *TASKS]
    with pytest.raises(KeyboardInterrupt):
        list(run_tasks(tasks, engine="processes", jobs=2, watch=watch))
    (pid,) = [step for name, step, *_ in watch.of("step") if name == "long"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@linux
def test_workers_do_not_outlive_a_driver_that_is_killed(tmp_path):
    script = (
        "import sys\n"
        "from leakgauge.runtime import Task, run_tasks\n"
        "from tests.runtime.work import say_and_sleep\n"
        "if __name__ == '__main__':\n"
        "    tasks = [Task(i, say_and_sleep, {'path': f'{sys.argv[1]}/{i}'}, kind=i) for i in '01']\n"
        "    list(run_tasks(tasks, engine='processes', jobs=2))\n"
    )
    (tmp_path / "driver.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py"), str(tmp_path)], env=environment)
    try:
        assert eventually(lambda: all((tmp_path / name).exists() for name in "01"))
        workers = children(driver.pid)
        assert {int((tmp_path / name).read_text()) for name in "01"} <= set(workers)
    finally:
        driver.kill()
        driver.wait()
    assert eventually(lambda: not any(map(alive, workers)))


class Fragile(SpawnProcess):
    """A process that is killed while it starts, as many times as is left."""

    left = 0

    def start(self):
        if Fragile.left:
            Fragile.left -= 1
            raise BrokenPipeError("the process was killed before it has read what it shall do")
        super().start()


@pytest.mark.parametrize("kills", [1, 2])
def test_a_worker_that_is_killed_while_it_starts_is_started_again(monkeypatch, kills):
    monkeypatch.setattr(multiprocessing.get_context("spawn"), "Process", Fragile)
    monkeypatch.setattr(Fragile, "left", kills)
    ((_, result),) = run_tasks([Task("sum", adds, {"first": 1, "second": 2})], engine="processes", jobs=1)
    assert result == 3
    assert Fragile.left == 0


def test_workers_that_never_start_are_one_sentence(monkeypatch):
    monkeypatch.setattr(multiprocessing.get_context("spawn"), "Process", Fragile)
    monkeypatch.setattr(Fragile, "left", 100)
    with pytest.raises(LeakgaugeError, match="worker processes cannot be started"):
        list(run_tasks([Task("sum", adds, {"first": 1, "second": 2})], engine="processes", jobs=1))


def test_no_more_tasks_start_than_fit_into_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    tasks = [Task(str(number), takes, {"megabytes": 8, "seconds": 1}, memory=700 * 2**20) for number in range(3)]
    spans = sorted(span[:2] for _, span in run_tasks(tasks, engine="processes", jobs=2))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


KILLS = int(os.environ.get("LEAKGAUGE_KILLS", "3"))


def test_workers_killed_at_random_change_nothing():
    """Set ``LEAKGAUGE_KILLS=20`` for a sweep of 40 tasks."""
    number = 2 * KILLS
    tasks = [Task(str(seed), slow_sum, {"seed": seed, "seconds": 0.5}) for seed in range(number)]
    chance, killed, over = random.Random(0), [], threading.Event()

    def kill():
        while len(killed) < KILLS and not over.wait(chance.uniform(0.1, 1.5)):
            workers = [
                child for child in multiprocessing.active_children() if child.is_alive() and child.pid is not None
            ]
            if workers:
                victim = chance.choice(workers).pid
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        results = [(task.name, value) for task, value in run_tasks(tasks, engine="processes", jobs=2)]
    finally:
        over.set()
        killer.join()
    assert killed  # all KILLS of them, unless the machine was too busy to kill more before the end
    assert len(results) == number  # each once
    assert dict(results) == {task.name: value for task, value in run_tasks(_quick(tasks), engine="in-process")}


def _quick(tasks):
    return [Task(task.name, slow_sum, {**task.arguments, "seconds": 0}) for task in tasks]
