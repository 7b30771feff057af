"""One map: the same results wherever it runs, each once; what fails is told when the rest is done."""

import os

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
def found():
    return {name: collected(**options) for name, options in ENGINES.items()}


def test_every_engine_gives_the_same_results(found):
    values = {name: {task.name: result[0] for task, result in results} for name, (results, _) in found.items()}
    assert values["in-process"] == values["processes"]
    assert len(set(values["processes"].values())) == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_each_task_comes_once_with_its_result(found, engine):
    results, _ = found[engine]
    assert sorted(task.name for task, _ in results) == sorted(task.name for task in TASKS)
    assert all(task in TASKS and threads == 1 for task, (_, threads, _) in results)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_watches_is_told_of_every_task(found, engine):
    _, watch = found[engine]
    names = sorted([task.name] for task in TASKS)
    assert watch.all[0] == ("planned", 5)
    assert sorted(watch.of("began")) == sorted(watch.of("done")) == names
    assert sorted(watch.of("step")) == [[f"seed {seed}", 1, 2, float(seed)] for seed in range(5)]
    for name in (task.name for task in TASKS):
        assert [what for what, of, *_ in watch.all if of == name] == ["began", "step", "done"]


def test_in_process_is_this_process_and_processes_are_others(found):
    pids = {name: {result[2] for _, result in results} for name, (results, _) in found.items()}
    assert pids["in-process"] == {os.getpid()}
    assert os.getpid() not in pids["processes"]
    assert len(pids["processes"]) <= 2


def test_no_tasks_no_results():
    assert collected([], engine="processes", jobs=2)[0] == []


def test_nobody_needs_to_watch():
    assert len(list(run_tasks(TASKS[:2]))) == 2


def test_what_all_tasks_share_is_an_argument_of_each():
    tasks = [Task(str(number), adds, {"second": number}) for number in range(3)]
    for options in ENGINES.values():
        assert sorted(result for _, result in run_tasks(tasks, common={"first": 10}, **options)) == [10, 11, 12]


def test_the_number_of_threads_comes_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        running = run_tasks(TASKS[:2])
        next(running)
        running.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# Where it pays


def test_short_work_stays_here():
    results, _ = collected(jobs=2)
    assert {result[2] for _, result in results} == {os.getpid()}


def test_long_work_goes_to_processes_and_loses_the_one_task_that_was_begun(monkeypatch):
    monkeypatch.setattr(engines, "START", 0.5)
    tasks = [TASKS[0], *(Task(f"slow {seed}", slow_sum, {"seed": seed, "seconds": 1}) for seed in range(3))]
    results, watch = collected(tasks, jobs=2)
    values = {task.name: result for task, result in results}
    assert values.pop("seed 0")[2] == os.getpid()
    assert watch.of("again") == [["slow 0", "the work goes on in processes"]]
    assert values == {task.name: result for task, result in run_tasks(tasks[1:], engine="in-process")}


def test_one_job_or_one_task_left_stays_here(monkeypatch):
    monkeypatch.setattr(engines, "START", 0.0)
    for tasks, jobs in ((TASKS[:2], 1), (TASKS[:1], 2)):
        results, _ = collected(tasks, jobs=jobs)
        assert {result[2] for _, result in results} == {os.getpid()}


# What fails


@pytest.mark.parametrize("engine", ENGINES)
def test_what_fails_is_told_when_the_rest_is_done(engine):
    tasks = [Task("broken", fails), TASKS[0], Task("too", fails), Task("unlike", fails, {"words": "other"}), TASKS[1]]
    results = []
    watch = Noted()
    with pytest.raises(TasksFailed) as told:
        results.extend(task.name for task, _ in run_tasks(tasks, watch=watch, **ENGINES[engine]))
    assert sorted(results) == ["seed 0", "seed 1"]
    assert sorted(str(told.value).splitlines()) == [
        "  broken and 1 more: ValueError: task went wrong",
        "  unlike: ValueError: other",
        "3 of 5 tasks failed, the others are done:",
    ]
    assert isinstance(told.value.__cause__, ValueError)
    assert not watch.of("again")  # the same seed and code would go wrong again
    assert ["unlike", "ValueError: other"] in watch.of("failed")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mistake_in_every_task_is_raised_as_it_is(engine):
    with pytest.raises(InvalidInput, match=r"^the clients are too few"):
        list(run_tasks([Task(str(number), mistaken) for number in range(3)], **ENGINES[engine]))
    with pytest.raises(TasksFailed, match=r"1 of 2 tasks failed.*\n  a: the clients are too few"):
        list(run_tasks([Task("a", mistaken), TASKS[0]], **ENGINES[engine]))


def test_an_error_that_may_pass_is_tried_again_here_as_well(tmp_path):
    task = Task("unlucky", not_the_first_time, {"path": str(tmp_path / "0"), "how": "disk"})
    ((_, result),), watch = collected([task], engine="in-process")
    assert result == "after disk"
    assert watch.of("again") == [["unlucky", "OSError: the disk is away"]]
    with pytest.raises(TasksFailed, match="the disk is away"):
        list(run_tasks([Task("once", not_the_first_time, {"path": str(tmp_path / "1"), "how": "disk"}, tries=1)]))


# Which engine


@pytest.mark.parametrize("engine", ["auto", "in-process", "processes", "ray", "ray:auto", "ray:head:6379"])
def test_engines_that_there_are(engine):
    check_engine(engine)


@pytest.mark.parametrize("engine", ["", "proceses", "processes:2", "rays", "auto:"])
def test_an_engine_that_there_is_not(engine):
    with pytest.raises(UnknownName, match="in-process, processes, ray"):
        check_engine(engine)


def test_what_an_engine_cannot_do_is_said_before_anything_is_done(monkeypatch):
    with pytest.raises(InvalidInput, match="one task at a time, not 2"):
        check_engine("in-process", 2)
    with pytest.raises(InvalidInput, match="lacks an address"):
        check_engine("ray:")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "leakgauge\[ray\]"'):
        list(run_tasks(TASKS, engine="ray"))
