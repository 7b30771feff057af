"""Tasks here and in processes: the same results, each once, and nothing left behind."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from leakscope.sweep import Task, run_tasks
from leakscope.sweep.engines import cores


def noisy_sum(seed, report):
    """A result that hangs on the seed alone, with the process that made it."""
    values = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
    report(1, 2, float(seed))
    return (values.exp() @ values).item(), torch.get_num_threads(), os.getpid()


def fails(report):
    raise ValueError("task went wrong")


def sleeps(seconds, report):
    report(os.getpid(), None, 0.0)
    time.sleep(seconds)


TASKS = [Task(f"seed {seed}", noisy_sum, {"seed": seed}) for seed in range(5)]


def collected(jobs, tasks=TASKS):
    messages = []
    results = list(run_tasks(tasks, jobs=jobs, watch=lambda *message: messages.append(message)))
    return results, messages


@pytest.fixture(scope="module")
def both():
    return {jobs: collected(jobs) for jobs in (1, 2)}


@pytest.fixture
def children():
    """Processes that a test leaves running are an error."""
    before = set(multiprocessing.active_children())
    yield
    left = set(multiprocessing.active_children()) - before
    for process in left:
        process.kill()
    assert not left


def test_processes_give_the_same_results(both):
    values = {jobs: {task.name: result[0] for task, result in results} for jobs, (results, _) in both.items()}
    assert values[1] == values[2]
    assert len(set(values[1].values())) == 5


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_task_comes_once_with_its_result(both, jobs):
    results, _ = both[jobs]
    assert sorted(task.name for task, _ in results) == sorted(task.name for task in TASKS)
    assert all(task in TASKS and threads == 1 for task, (_, threads, _) in results)


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_arrives_with_the_name_of_its_task(both, jobs):
    _, messages = both[jobs]
    assert sorted(messages) == [(f"seed {seed}", 1, 2, float(seed)) for seed in range(5)]


def test_one_job_stays_in_this_process_and_several_do_not(both):
    pids = {jobs: {result[2] for _, result in results} for jobs, (results, _) in both.items()}
    assert pids[1] == {os.getpid()}
    assert os.getpid() not in pids[2]
    assert len(pids[2]) <= 2


def test_a_single_task_needs_no_process():
    ((_, result),), _ = collected(4, TASKS[:1])
    assert result[2] == os.getpid()


def test_no_tasks_no_results():
    assert collected(2, []) == ([], [])


def test_nobody_needs_to_watch():
    assert len(list(run_tasks(TASKS[:2]))) == 2


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


def test_an_exception_is_raised_here():
    with pytest.raises(ValueError, match="task went wrong"):
        list(run_tasks([TASKS[0], Task("broken", fails)]))


def test_an_exception_in_a_process_is_raised_here_and_ends_the_others(children):
    began = time.monotonic()
    with pytest.raises(ValueError, match="task went wrong"):
        list(run_tasks([Task("long", sleeps, {"seconds": 300}), Task("broken", fails)], jobs=2))
    assert time.monotonic() - began < 100


def test_who_stops_listening_ends_the_workers(children):
    """What Ctrl-C does to the generator: nothing goes on, and nobody waits for it."""
    pids = []
    tasks = [Task("long", sleeps, {"seconds": 300}), Task("short", sleeps, {"seconds": 0.5}), *TASKS]
    running = run_tasks(tasks, jobs=2, watch=lambda name, pid, *_: pids.append(pid) if name == "long" else None)
    first, _ = next(running)
    while not pids:  # the long task may be the last to start
        first, _ = next(running)
    assert first.name != "long"
    began = time.monotonic()
    running.close()
    assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_there_is_a_core():
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_workers_do_not_outlive_a_driver_that_is_killed(tmp_path):
    script = (
        "import sys\n"
        "from leakscope.sweep.engines import Task, run_tasks\n"
        "from tests.sweep.test_engines import say_and_sleep\n"
        "if __name__ == '__main__':\n"
        "    tasks = [Task(str(i), say_and_sleep, {'path': f'{sys.argv[1]}/{i}'}) for i in range(2)]\n"
        "    list(run_tasks(tasks, jobs=2))\n"
    )
    (tmp_path / "driver.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py"), str(tmp_path)], env=environment)
    try:
        assert _within(60, lambda: all((tmp_path / name).exists() for name in "01"))
        children = [process for process in _processes() if _parent(process) == driver.pid]
        assert {int((tmp_path / name).read_text()) for name in "01"} < set(children)  # the workers and the manager
    finally:
        driver.kill()
        driver.wait()
    assert _within(20, lambda: not any(map(_alive, children)))


def say_and_sleep(path, report):
    partial = Path(f"{path}.part")
    partial.write_text(str(os.getpid()))
    partial.rename(path)
    time.sleep(300)


def _within(seconds, condition):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _processes():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _status(process):
    try:
        return dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _parent(process):
    return int(_status(process).get("PPid", -1))


def _alive(process):
    return "zombie" not in _status(process).get("State", "zombie")
