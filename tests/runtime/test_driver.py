"""No more tasks run than there are workers and memory for."""

import pickle

import pytest

from leakgauge.core.errors import InvalidInput
from leakgauge.runtime import Task, check_engine, driver
from leakgauge.runtime.ctrl_c import Stop
from leakgauge.runtime.driver import Event, drive
from tests.runtime.work import Noted

GIB = 2**30


class Scripted:
    """Workers that send the messages of a script, and record which tasks run together."""

    def __init__(self, slots=4, free=None, total=16 * GIB):
        self._slots, self._free, self._total = slots, free, total
        self.running, self.together, self.needs, self.stopped = {}, [], {}, []
        self.script = {}
        self.interrupted, self.can_return = False, True

    def slots(self):
        return self._slots

    def free(self):
        return self._free

    def largest(self):
        return self._total

    def start(self, attempt, task, need):
        self.running[attempt] = task
        self.needs.setdefault(task.name, []).append(need)
        self.together.append(sorted(task.name for task in self.running.values()))

    def stop(self, attempt):
        self.stopped.append(self.running.pop(attempt).name)

    def interrupt(self):
        self.interrupted = True
        return self.can_return

    def events(self, timeout):
        """The next message of each running task. The last message ends it."""
        events = []
        for attempt, task in list(self.running.items()):
            messages = self.script.setdefault(task.name, [("begun",), done(task.name)])
            kind, *values = messages.pop(0)
            if kind == "ctrl-c":
                values[0].presses += 1
                continue
            if kind == "silent":
                continue
            if kind in ("done", "failed", "lost"):
                del self.running[attempt]
            events.append(Event(attempt, kind, tuple(values)))
        return events


def done(value, peak=0):
    return "done", pickle.dumps(value), peak


def run(workers, tasks, stop=None):
    watch, failures = Noted(), {}
    return [task.name for task, _ in drive(workers, tasks, watch, failures, stop or Stop())], watch, failures


def named(names, **options):
    return [Task(name, len, **options) for name in names]


def most(workers):
    return max(map(len, workers.together))


def test_no_more_tasks_run_than_there_are_workers():
    workers = Scripted(slots=2)
    finished, _, _ = run(workers, named("abcde", memory=1))
    assert sorted(finished) == list("abcde")
    assert most(workers) == 2


def test_no_more_tasks_run_than_fit_into_free_memory():
    workers = Scripted(free=5 * GIB)
    run(workers, named("abcdef", memory=2 * GIB))
    assert most(workers) == 2
    assert workers.needs["f"] == [2 * GIB]


def test_memory_that_running_tasks_have_taken_is_not_reserved_twice():
    workers = Scripted(free=3 * GIB)  # besides the memory that "a" has taken
    workers.script["a"] = [("begun",), ("step", 1, 9, 0.0, 2 * GIB), ("beat", 2 * GIB), ("beat", 2 * GIB), done(0)]
    run(workers, named("ab", memory=2 * GIB))
    assert ["a", "b"] in workers.together


def test_one_task_always_runs_and_smaller_ones_go_first():
    workers = Scripted(free=GIB)
    finished, _, _ = run(workers, [*named("a", memory=GIB // 2), *named("b", memory=3 * GIB), *named("c", memory=1)])
    assert sorted(finished) == list("abc")
    assert workers.together[:2] == [["a"], ["a", "c"]]
    assert workers.together[2] == ["b"]


def test_a_need_beyond_the_machine_is_refused():
    finished, watch, failures = run(Scripted(total=2 * GIB), [*named("a", memory=3 * GIB), *named("b")])
    assert finished == ["b"]
    assert str(failures["a"]) == "the task needs 3.0 GiB of memory, and the machine has 2.0 GiB"
    assert watch.of("failed") == [["a", f"MemoryError: {failures['a']}"]]


def test_of_an_unknown_kind_one_task_runs_first_to_measure_its_need():
    workers = Scripted(free=5 * GIB)
    workers.script["a"] = [("begun",), ("beat", GIB), ("step", 1, 9, 0.0, 2 * GIB), ("beat", GIB), done(0, GIB)]
    run(workers, [*named("abcd"), *named("x", kind="other")])
    assert workers.together[1] == ["a", "x"]  # of another kind
    assert workers.needs["a"] == [None]
    assert workers.needs["b"] == [2 * GIB]  # known from a's first step, while a runs
    assert ["a", "b"] in [names for names in workers.together if "x" not in names]


def test_a_stated_need_that_is_too_low_is_corrected():
    workers = Scripted(slots=1)
    workers.script["a"] = [done(0, 3 * GIB)]
    run(workers, named("ab", memory=GIB))
    assert workers.needs == {"a": [GIB], "b": [3 * GIB]}


def test_the_need_of_a_long_task_without_a_report_counts_as_known(monkeypatch):
    monkeypatch.setattr(driver, "SETTLED", -1.0)
    workers = Scripted(free=9 * GIB)
    workers.script["a"] = [("begun",), ("beat", GIB), ("beat", GIB), done(0)]
    run(workers, named("ab"))
    assert ["a", "b"] in workers.together
    assert workers.needs["b"] == [GIB]


def test_silence_is_a_hang_after_the_limit_of_the_task(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(driver.time, "monotonic", lambda: float(next(clock)))
    workers = Scripted()
    workers.script["a"] = [("begun",), *[("silent",)] * 9, ("begun",), done(0)]
    workers.script["b"] = [("begun",), *[("silent",)] * 20, done(0)]
    finished, watch, _ = run(workers, [*named("a", limit=6.0, kind="a"), *named("b", kind="b")])
    assert finished == ["a", "b"]
    assert workers.stopped[0] == "a"
    assert watch.of("again")[0] == ["a", "the task reported nothing for 6 seconds"]


def test_a_task_without_a_limit_of_its_own_hangs_after_six_hours_or_as_the_user_sets(monkeypatch):
    for patience, seconds in (("", 6 * 3600), ("90", 90)):
        monkeypatch.setenv(driver.PATIENCE, patience)
        clock = iter(range(0, 10**9, 60))
        monkeypatch.setattr(driver.time, "monotonic", lambda clock=clock: float(next(clock)))
        workers = Scripted()
        workers.script["a"] = [("begun",), *[("silent",)] * (seconds // 60), ("begun",), *[("silent",)] * 1000, done(0)]
        finished, watch, failures = run(workers, named("ab"))
        assert finished == ["b"]
        assert workers.stopped == ["a", "a"]
        words = f"the task reported nothing for {seconds} seconds. LEAKGAUGE_PATIENCE sets another limit"
        assert watch.of("again") == [["a", words]]
        assert str(failures["a"]) == f"{words} (2 times)"


@pytest.mark.parametrize("patience", ["0", "-1", "nan", "long"])
def test_a_wrong_limit_is_refused_before_any_task_starts(monkeypatch, patience):
    monkeypatch.setenv(driver.PATIENCE, patience)
    with pytest.raises(InvalidInput, match="must be a number of seconds above 0"):
        check_engine("auto")


def test_a_lost_task_is_restarted_and_in_the_end_given_up():
    workers = Scripted()
    workers.script["a"] = [("begun",), ("lost", "its worker died"), ("begun",), ("failed", MemoryError("x"), True)]
    workers.script["b"] = [("lost", "its worker died")] * 3
    finished, watch, failures = run(workers, [*named("a", tries=2), *named("b", tries=3), *named("c")])
    assert finished == ["c"]
    assert str(failures["b"]) == "its worker died (3 times)"
    assert str(failures["a"]) == "x (2 times)"
    assert isinstance(failures["a"], MemoryError)
    assert [name for name, _ in watch.of("again")].count("b") == 2


@pytest.mark.parametrize("first", ["step", "done"])
def test_a_watch_receives_the_start_first(first):
    workers = Scripted()
    workers.script["a"] = [("step", 1, 2, 0.0, 1), done(0)] if first == "step" else [done(0)]
    _, watch, _ = run(workers, named("a"))
    assert [kind for kind, *_ in watch.all] == ["began", *(["step"] if first == "step" else []), "done"]


def pressed(workers, names):
    """Run tasks until Ctrl-C, and return the tasks with a result and the failures."""
    stop, found, failures = Stop(), [], {}
    workers.script = {
        name: [message if message != "ctrl-c" else (message, stop) for message in messages]
        for name, messages in workers.script.items()
    }
    with pytest.raises(KeyboardInterrupt):
        found.extend(task.name for task, _ in drive(workers, names, Noted(), failures, stop) if found.append(task.name))
    return found, failures


def test_after_an_interrupt_running_tasks_return_what_they_have_and_no_other_starts():
    workers = Scripted(slots=2)
    workers.script["a"] = [("begun",), "ctrl-c", ("silent",), done(0)]
    workers.script["b"] = [("begun",), ("silent",), ("failed", ValueError("has nothing"), False)]
    found, failures = pressed(workers, named("abc", memory=1))
    assert (found, failures, workers.stopped) == (["a"], {}, [])
    assert workers.interrupted
    assert "c" not in workers.needs


def test_after_an_interrupt_tasks_that_cannot_return_or_that_have_not_begun_are_ended():
    workers = Scripted(slots=2)
    workers.script["a"] = [("begun",), "ctrl-c", ("silent",), done(0)]
    workers.script["b"] = [("silent",), ("silent",), ("silent",), done(0)]
    assert pressed(workers, named("ab", memory=1)) == (["a"], {})
    assert workers.stopped == ["b"]
    cluster = Scripted()
    cluster.can_return = False
    cluster.script["a"] = [("begun",), "ctrl-c", ("silent",), done(0)]
    assert pressed(cluster, named("a")) == ([], {})
    assert cluster.stopped == ["a"]
