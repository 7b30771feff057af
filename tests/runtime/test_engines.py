"""All engines give the same results, each once, and list failures when the others are done."""

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from leakgauge.core.errors import InvalidInput, MissingExtra, TasksFailed, UnknownName
from leakgauge.runtime import Task, check_engine, engines, run_tasks
from tests.runtime.work import TASKS, Noted, adds, fails, mistaken, not_the_first_time, slow_sum


def collected(tasks=TASKS, **options):
    watch = Noted()
    return list(run_tasks(tasks, watch=watch, **options)), watch


ENGINES = {"in-process": {"engine": "in-process"}, "processes": {"engine": "processes", "jobs": 2}}


@pytest.fixture(scope="module")
def outcomes():
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "2")  # the number of threads that workers have before they limit it
        return {name: collected(**options) for name, options in ENGINES.items()}


def test_every_engine_gives_the_same_results(outcomes):
    values = {name: {task.name: result[0] for task, result in results} for name, (results, _) in outcomes.items()}
    assert values["in-process"] == values["processes"]
    assert len(set(values["processes"].values())) == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_each_task_comes_once_with_its_result(outcomes, engine):
    results, _ = outcomes[engine]
    assert sorted(task.name for task, _ in results) == sorted(task.name for task in TASKS)
    assert all(task in TASKS and threads == 1 for task, (_, threads, _) in results)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_watch_receives_every_task(outcomes, engine):
    _, watch = outcomes[engine]
    names = sorted([task.name] for task in TASKS)
    assert watch.all[0] == ("planned", 5)
    assert sorted(watch.of("began")) == sorted(watch.of("done")) == names
    assert sorted(watch.of("step")) == [[f"seed {seed}", 1, 2, float(seed)] for seed in range(5)]
    for name in (task.name for task in TASKS):
        assert [kind for kind, of, *_ in watch.all if of == name] == ["began", "step", "done"]


def test_in_process_is_this_process_and_processes_are_others(outcomes):
    pids = {name: {result[2] for _, result in results} for name, (results, _) in outcomes.items()}
    assert pids["in-process"] == {os.getpid()}
    assert os.getpid() not in pids["processes"]
    assert len(pids["processes"]) <= 2


def test_no_tasks_no_results():
    assert collected([], engine="processes", jobs=2)[0] == []


def test_a_watch_is_optional():
    assert len(list(run_tasks(TASKS[:2]))) == 2


def test_shared_arguments_go_to_each_task():
    tasks = [Task(str(number), adds, {"second": number}) for number in range(3)]
    for options in ENGINES.values():
        assert sorted(result for _, result in run_tasks(tasks, common={"first": 10}, **options)) == [10, 11, 12]


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        running = run_tasks(TASKS[:2])
        next(running)
        running.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# The engine auto


def test_short_work_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(engines, "START", 3600.0)  # longer than any machine takes
    results, _ = collected(jobs=2)
    assert {result[2] for _, result in results} == {os.getpid()}


def test_long_work_moves_to_processes_and_restarts_one_task(monkeypatch):
    """The clock advances by 0.1 seconds each time that it is read, so that the second task passes the limit."""
    clock = itertools.count()
    monkeypatch.setattr(engines, "time", SimpleNamespace(monotonic=lambda: next(clock) / 10))
    monkeypatch.setattr(engines, "START", 0.5)
    tasks = [TASKS[0], *(Task(f"slow {seed}", slow_sum, {"seed": seed, "seconds": 0.2}) for seed in range(3))]
    results, watch = collected(tasks, jobs=2)
    values = {task.name: result for task, result in results}
    assert values.pop("seed 0")[2] == os.getpid()
    assert watch.of("again") == [["slow 0", "the work continues in worker processes"]]
    assert values == {task.name: result for task, result in run_tasks(tasks[1:], engine="in-process")}


def test_one_job_or_one_task_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(engines, "START", 0.0)
    for tasks, jobs in ((TASKS[:2], 1), (TASKS[:1], 2)):
        results, _ = collected(tasks, jobs=jobs)
        assert {result[2] for _, result in results} == {os.getpid()}


# Failures


@pytest.mark.parametrize("engine", ENGINES)
def test_failures_are_listed_when_the_others_are_done(engine):
    tasks = [Task("broken", fails), TASKS[0], Task("too", fails), Task("unlike", fails, {"words": "other"}), TASKS[1]]
    results = []
    watch = Noted()
    with pytest.raises(TasksFailed) as raised:
        results.extend(task.name for task, _ in run_tasks(tasks, watch=watch, **ENGINES[engine]))
    assert sorted(results) == ["seed 0", "seed 1"]
    assert sorted(str(raised.value).splitlines()) == [
        "  broken and 1 more: ValueError: task went wrong",
        "  unlike: ValueError: other",
        "3 of 5 tasks failed, the others are done:",
    ]
    assert isinstance(raised.value.__cause__, ValueError)
    assert not watch.of("again")  # the same seed and code would fail again
    assert ["unlike", "ValueError: other"] in watch.of("failed")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mistake_in_every_task_is_raised_unchanged(engine):
    with pytest.raises(InvalidInput, match=r"^the clients are too few"):
        list(run_tasks([Task(str(number), mistaken) for number in range(3)], **ENGINES[engine]))
    with pytest.raises(TasksFailed, match=r"1 of 2 tasks failed.*\n  a: the clients are too few"):
        list(run_tasks([Task("a", mistaken), TASKS[0]], **ENGINES[engine]))


def test_a_transient_error_restarts_a_task_in_process_as_well(tmp_path):
    task = Task("unlucky", not_the_first_time, {"path": str(tmp_path / "0"), "how": "disk"})
    ((_, result),), watch = collected([task], engine="in-process")
    assert result == "after disk"
    assert watch.of("again") == [["unlucky", "OSError: the disk is away"]]
    with pytest.raises(TasksFailed, match="the disk is away"):
        list(run_tasks([Task("once", not_the_first_time, {"path": str(tmp_path / "1"), "how": "disk"}, tries=1)]))


# Names of engines


@pytest.mark.parametrize("engine", ["auto", "in-process", "processes", "ray", "ray:auto", "ray:head:6379"])
def test_known_engines_are_accepted(engine):
    check_engine(engine)


@pytest.mark.parametrize("engine", ["", "proceses", "processes:2", "rays", "auto:"])
def test_unknown_engines_are_refused(engine):
    with pytest.raises(UnknownName, match="in-process, processes, ray"):
        check_engine(engine)


def test_impossible_options_are_refused_before_any_work(monkeypatch):
    with pytest.raises(InvalidInput, match="one task at a time, not 2"):
        check_engine("in-process", 2)
    with pytest.raises(InvalidInput, match="lacks an address"):
        check_engine("ray:")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[ray\]"):
        list(run_tasks(TASKS, engine="ray"))


# Imports


@pytest.mark.parametrize("module", ["leakgauge.runtime", "leakgauge.runtime.memory", "leakgauge.runtime.display"])
def test_the_command_line_need_not_load_torch(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_script_without_a_guard_stays_in_one_process(tmp_path):
    script = """
from leakgauge.runtime import Task, engines, run_tasks
from tests.runtime.work import slow_sum

engines.START = 0.0
print("begun")
tasks = [Task(str(seed), slow_sum, {"seed": seed, "seconds": 0.1}) for seed in range(3)]
print(len(list(run_tasks(tasks, engine="auto", jobs=2))))
"""
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["begun", "3"]
