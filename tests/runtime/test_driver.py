"""What starts and what waits: as many tasks as there are workers, and memory for."""

import pickle

import pytest

from leakgauge.runtime import Task, driver
from leakgauge.runtime.driver import Event, drive
from tests.runtime.work import Noted

GIB = 2**30


class Scripted:
    """Workers that say what a test tells them to, and note what runs beside what."""

    def __init__(self, slots=4, free=None, total=16 * GIB):
        self._slots, self._free, self._total = slots, free, total
        self.running, self.together, self.needs, self.stopped = {}, [], {}, []
        self.script = {}

    def slots(self):
        return self._slots

    def free(self):
        return self._free

    def largest(self):
        return self._total

    def start(self, attempt, task, need):
        self.running[attempt] = task
        self.needs.setdefault(task.name, []).append(need)
        self.together.append(sorted(one.name for one in self.running.values()))

    def stop(self, attempt):
        self.stopped.append(self.running.pop(attempt).name)

    def events(self, timeout):
        """The next word of each running task; the last one ends it."""
        found = []
        for attempt, task in list(self.running.items()):
            words = self.script.setdefault(task.name, [("begun",), done(task.name)])
            what, *values = words.pop(0)
            if what == "silent":
                continue
            if what in ("done", "failed", "lost"):
                del self.running[attempt]
            found.append(Event(attempt, what, tuple(values)))
        return found


def done(value, peak=0):
    return "done", pickle.dumps(value), peak


def run(workers, tasks):
    watch, failures = Noted(), {}
    return [task.name for task, _ in drive(workers, tasks, watch, failures)], watch, failures


def named(names, **options):
    return [Task(name, len, **options) for name in names]


def most(workers):
    return max(map(len, workers.together))


def test_no_more_run_than_there_are_workers():
    workers = Scripted(slots=2)
    found, _, _ = run(workers, named("abcde", memory=1))
    assert sorted(found) == list("abcde")
    assert most(workers) == 2


def test_no_more_run_than_fit_into_the_memory_that_is_free():
    workers = Scripted(free=5 * GIB)
    run(workers, named("abcdef", memory=2 * GIB))
    assert most(workers) == 2
    assert workers.needs["f"] == [2 * GIB]


def test_what_running_tasks_have_taken_is_not_set_aside_twice():
    workers = Scripted(free=3 * GIB)  # beside what "a" has taken
    workers.script["a"] = [("begun",), ("step", 1, 9, 0.0, 2 * GIB), ("beat", 2 * GIB), ("beat", 2 * GIB), done(0)]
    run(workers, named("ab", memory=2 * GIB))
    assert ["a", "b"] in workers.together


def test_one_always_runs_and_smaller_ones_go_first():
    workers = Scripted(free=GIB)
    found, _, _ = run(workers, [*named("a", memory=GIB // 2), *named("b", memory=3 * GIB), *named("c", memory=1)])
    assert sorted(found) == list("abc")
    assert workers.together[:2] == [["a"], ["a", "c"]]
    assert workers.together[2] == ["b"]


def test_more_than_there_is_at_all_is_refused():
    found, watch, failures = run(Scripted(total=2 * GIB), [*named("a", memory=3 * GIB), *named("b")])
    assert found == ["b"]
    assert str(failures["a"]) == "it needs 3.0 GiB, and there is only 2.0 GiB"
    assert watch.of("failed") == [["a", f"MemoryError: {failures['a']}"]]


def test_of_a_kind_that_nothing_is_known_of_one_shows_what_it_needs():
    workers = Scripted(free=5 * GIB)
    workers.script["a"] = [("begun",), ("beat", GIB), ("step", 1, 9, 0.0, 2 * GIB), ("beat", GIB), done(0, GIB)]
    run(workers, [*named("abcd"), *named("x", kind="other")])
    assert workers.together[1] == ["a", "x"]  # of another kind
    assert workers.needs["a"] == [None]
    assert workers.needs["b"] == [2 * GIB]  # known from a's first step, while a runs
    assert ["a", "b"] in [one for one in workers.together if "x" not in one]


def test_a_statement_that_is_too_low_is_corrected():
    workers = Scripted(slots=1)
    workers.script["a"] = [done(0, 3 * GIB)]
    run(workers, named("ab", memory=GIB))
    assert workers.needs == {"a": [GIB], "b": [3 * GIB]}


def test_what_works_for_long_without_a_report_counts_as_known(monkeypatch):
    monkeypatch.setattr(driver, "SETTLED", -1.0)
    workers = Scripted(free=9 * GIB)
    workers.script["a"] = [("begun",), ("beat", GIB), ("beat", GIB), done(0)]
    run(workers, named("ab"))
    assert ["a", "b"] in workers.together
    assert workers.needs["b"] == [GIB]


def test_silence_is_a_hang_only_where_a_task_says_so(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(driver.time, "monotonic", lambda: float(next(clock)))
    workers = Scripted()
    workers.script["a"] = [("begun",), *[("silent",)] * 9, ("begun",), done(0)]
    workers.script["b"] = [("begun",), *[("silent",)] * 20, done(0)]
    found, watch, _ = run(workers, [*named("a", limit=6.0, kind="a"), *named("b", kind="b")])
    assert found == ["a", "b"]
    assert workers.stopped[0] == "a"
    assert watch.of("again")[0] == ["a", "it reported nothing for 6 seconds"]


def test_what_is_lost_is_begun_anew_and_in_the_end_given_up():
    workers = Scripted()
    workers.script["a"] = [("begun",), ("lost", "its worker died"), ("begun",), ("failed", MemoryError("x"), True)]
    workers.script["b"] = [("lost", "its worker died")] * 3
    found, watch, failures = run(workers, [*named("a", tries=2), *named("b", tries=3), *named("c")])
    assert found == ["c"]
    assert str(failures["b"]) == "its worker died (3 times)"
    assert str(failures["a"]) == "x (2 times)"
    assert isinstance(failures["a"], MemoryError)
    assert [name for name, _ in watch.of("again")].count("b") == 2


@pytest.mark.parametrize("first", ["step", "done"])
def test_who_watches_hears_of_the_beginning_first(first):
    workers = Scripted()
    workers.script["a"] = [("step", 1, 2, 0.0, 1), done(0)] if first == "step" else [done(0)]
    _, watch, _ = run(workers, named("a"))
    assert [what for what, *_ in watch.all] == ["began", *(["step"] if first == "step" else []), "done"]
