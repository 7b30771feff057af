"""The hyper-parameter search beats random draws, resumes exactly, and prunes losing trials."""

import importlib
import logging
import math
import random
import sqlite3
import sys
import warnings
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from leakgauge.attacks.inversion.search import Range, Search, Trial, _batches, _limits, _with_values, search
from leakgauge.core.errors import FileError, InvalidInput, MissingExtra
from leakgauge.runtime.cache import FILE, Cache
from tests.runtime.work import Noted

#: Table 2 of AWA.
TABLE_2 = {f"q_{name}": Range(1, 1000) for name in ("cv", "bn", "fc", "en")}
TABLE_2 |= {f"p_{name}": Range(0, 0.5) for name in ("mean", "var")}
#: Case 1 of its table 3, as the place of a minimum that is known.
CASE_1 = {"q_cv": 519.19, "q_bn": 802.55, "q_fc": 42.83, "q_en": 946.44, "p_mean": 0.24, "p_var": 0.07}
PLANE = {"x": Range(-2, 2), "y": Range(1e-3, 10, log=True)}
SMALL = {"trials": 8, "random": 4}


def distance(numbers, check=None, report=None):
    """A bowl around case 1, in which some numbers matter more than others."""
    weights = (3, 1, 2, 0.3, 1, 0.5)
    parts = ((numbers[name] - CASE_1[name]) / (one.high - one.low) for name, one in TABLE_2.items())
    return sum(weight * part**2 for weight, part in zip(weights, parts, strict=True))


def bowl(numbers, check, report):
    return 1 + numbers["x"] ** 2 + math.log10(numbers["y"]) ** 2


def failing(numbers, check, report):
    return math.nan


@dataclass(frozen=True)
class Falling:
    """An objective that falls to its value in ten steps."""

    steps: int = 10

    def __call__(self, numbers, check, report):
        value = bowl(numbers, check, report)
        for step in range(self.steps):
            report(step, self.steps, value)
            check(step, value * (1 + 5 * 0.5**step))
        return value


class Interrupted:
    """An objective that is interrupted by Ctrl-C after some calls."""

    def __init__(self, after):
        self.left = after

    def __call__(self, numbers, check, report):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return bowl(numbers, check, report)


def never(numbers, check, report):
    raise AssertionError("a trial was run again")


def trial(number, value, curve=(), state="done"):
    return Trial(number, {"x": 0.0}, value, dict(enumerate(curve)), state)


@pytest.fixture(scope="module")
def whole():
    return search(bowl, PLANE, **SMALL)


def test_it_finds_a_minimum_in_six_dimensions_that_random_draws_miss():
    result = search(distance, TABLE_2, trials=30)
    by_chance = []
    for seed in range(20):
        draw = random.Random(seed)
        drawn = ({name: draw.uniform(one.low, one.high) for name, one in TABLE_2.items()} for _ in range(30))
        by_chance.append(min(map(distance, drawn)))
    assert result.best.value < min(by_chance) / 10
    assert all(limits.low <= result.best.numbers[name] <= limits.high for name, limits in TABLE_2.items())
    assert result.best.value == distance(result.best.numbers)


def test_the_same_seed_gives_the_same_trials_and_another_gives_others(whole):
    assert search(bowl, PLANE, **SMALL) == whole
    assert search(bowl, PLANE, trials=1, seed=1).trials[0].numbers != whole.trials[0].numbers
    assert [one.number for one in whole.trials] == list(range(8))


def test_the_running_minimum_is_that_of_trials_that_ran_to_their_end(whole):
    values = [one.value for one in whole.trials]
    assert whole.running_minimum == [min(values[: end + 1]) for end in range(8)]
    assert whole.best.value == whole.running_minimum[-1]
    cut = Search((trial(0, math.nan, state="failed"), trial(1, 2.0), trial(2, 1.0, [1.0], "cut short")), 1)
    assert cut.running_minimum == [math.inf, 2.0, 2.0]
    assert cut.best.number == 1


def test_numbers_on_a_logarithmic_range_are_spread_over_its_decades():
    drawn = [one.numbers["y"] for one in search(bowl, PLANE, trials=40, random=40).trials]
    assert 5 < sum(y < 1e-2 for y in drawn) < 20


# Interrupted and resumed


def test_ctrl_c_keeps_finished_trials_and_the_next_call_resumes(tmp_path, whole):
    path = tmp_path / "search"
    stopped = search(Interrupted(after=6), PLANE, path=path, **SMALL)
    assert stopped.trials == whole.trials[:6]
    assert search(bowl, PLANE, path=path, **SMALL) == whole
    assert search(never, PLANE, path=path, **SMALL) == whole


def test_ctrl_c_before_the_first_finished_trial_is_raised():
    with pytest.raises(KeyboardInterrupt):
        search(Interrupted(after=0), PLANE, **SMALL)


def test_an_exception_in_the_objective_keeps_the_trials_before_it(tmp_path, whole):
    path = tmp_path / "search"
    search(bowl, PLANE, path=path, trials=5, random=4)
    with pytest.raises(AssertionError, match="run again"):
        search(never, PLANE, path=path, **SMALL)
    assert search(bowl, PLANE, path=path, **SMALL) == whole


def test_more_trials_than_before_are_those_of_a_longer_search(tmp_path, whole):
    path = tmp_path / "search"
    assert search(bowl, PLANE, path=path, trials=5, random=4).trials == whole.trials[:5]
    assert search(bowl, PLANE, path=path, **SMALL) == whole
    assert search(never, PLANE, path=path, trials=3, random=4).trials == whole.trials[:3]


@pytest.mark.parametrize("lost", [0, 2, 4, 5])
def test_in_batches_a_trial_that_is_missing_comes_back_the_same(tmp_path, lost):
    """A batch may be interrupted when only its later trials are finished."""
    path = tmp_path / "search"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakgauge.attacks.inversion.search.run_tasks", _one_by_one)
        undisturbed = search(bowl, PLANE, path=path, jobs=2, trials=6, random=4)
        with sqlite3.connect(path / FILE) as connection:
            connection.execute("delete from results where definition like ?", (f'%"trial": {lost}}}',))
            assert connection.total_changes == 1
        connection.close()
        assert search(bowl, PLANE, path=path, jobs=2, trials=6, random=4) == undisturbed


def _one_by_one(tasks, *, engine, jobs, watch, common):
    """Run tasks in this process. Processes are tested once, below."""
    return ((task, task.function(**common, **task.arguments, report=lambda *_: None)) for task in tasks)


def test_another_search_in_the_same_folder_uses_none_of_its_trials(tmp_path, whole):
    path = tmp_path / "search"
    first = search(bowl, PLANE, path=path, trials=1, random=4)
    wider = {**PLANE, "x": Range(-2, 3)}
    changes = ({"seed": 1}, {"random": 3}, {"about": "another client"}, {"ranges": wider}, {"cut": False}, {"jobs": 2})
    for change in changes:
        with pytest.raises(AssertionError, match="run again"):
            search(never, path=path, **{"ranges": PLANE, "random": 4, "trials": 1, **change})
    assert search(never, PLANE, path=path, trials=1, random=4) == first


def test_trials_of_edited_code_are_not_used(tmp_path, monkeypatch):
    module = tmp_path / "objective_of_test.py"
    module.write_text("def objective(numbers, check, report):\n    return numbers['x'] ** 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    objective = importlib.import_module("objective_of_test").objective
    path = tmp_path / "search"
    for _ in range(2):
        search(objective, PLANE, path=path, trials=2, random=2)
        assert len(Cache(path)) == 2
    module.write_text("def objective(numbers, check, report):\n    return -numbers['x']\n")
    search(objective, PLANE, path=path, trials=2, random=2)
    assert len(Cache(path)) == 4
    del sys.modules["objective_of_test"]


def test_a_folder_that_cannot_be_used_is_refused_in_words(tmp_path):
    file = tmp_path / "trials.jsonl"
    file.write_text("my notes\n")
    with pytest.raises(FileError, match="cannot write results there"):
        search(never, PLANE, path=file)
    assert file.read_text() == "my notes\n"
    (tmp_path / FILE).write_bytes(b"this is no database" * 99)
    with pytest.raises(FileError, match="cannot be used"):
        search(never, PLANE, path=tmp_path)


# Pruned and failed


def test_a_trial_is_losing_when_above_the_median_by_more_than_that_is_above_the_best():
    finished = [trial(number, 0.0, [float(number), 10.0 + number]) for number in range(5)]
    assert _limits(finished) == {0: 4.0, 1: 14.0}
    assert _limits(finished[:4]) == {}
    others = [trial(5, 9.0, [9.0], "cut short"), trial(6, math.nan, [9.0], "failed")]
    assert _limits([*finished, *others]) == _limits(finished)
    assert _limits([*finished, trial(5, 0.0, [1.0])])[1] == 14.0


def test_losing_trials_are_pruned_which_saves_steps(tmp_path):
    arguments = {"trials": 12, "random": 6, "seed": 2}
    path = tmp_path / "search"
    found = search(Falling(), PLANE, path=path, **arguments)
    everything = search(Falling(), PLANE, cut=False, **arguments)
    cut = [one for one in found.trials if one.state == "cut short"]
    assert cut
    assert all(one.number >= 6 and len(one.curve) < 10 and one.value == list(one.curve.values())[-1] for one in cut)
    assert {one.state for one in everything.trials} == {"done"}
    assert sum(len(one.curve) for one in found.trials) < sum(len(one.curve) for one in everything.trials)
    assert found.trials[:6] == everything.trials[:6]
    assert found.best.value <= everything.trials[5].value
    assert search(never, PLANE, path=path, **arguments) == found


def test_a_pruned_trial_keeps_its_rank_for_the_gaussian_process():
    earlier = [
        trial(0, 1.0, [2.0]),
        trial(1, 3.0, [4.0]),
        trial(2, 9.0, [8.0]),
        trial(3, 5.0, [5.0], "cut short"),
        trial(4, 99.0, [99.0], "cut short"),
        trial(5, math.nan, [], "failed"),
    ]
    assert [value for _, value in _with_values(earlier)] == [1.0, 3.0, 9.0, 3.0, 9.0, 9.0]
    assert _with_values(earlier[3:]) == []


def test_the_gaussian_process_may_be_fitted_to_the_logarithm(whole):
    exponential = search(_ten_to_the_bowl, PLANE, log=True, **SMALL)
    assert [one.value for one in exponential.trials[:4]] == [10**one.value for one in whole.trials[:4]]
    for one, other in zip(exponential.trials, whole.trials, strict=True):
        assert one.numbers == pytest.approx(other.numbers, rel=1e-3, abs=1e-3)
    assert _with_values([trial(0, 0.0)], log=True)[0][1] < -700  # nothing is better, and it is a number
    with pytest.raises(InvalidInput, match="without log=True"):
        search(_minus_one, PLANE, log=True, **SMALL)


def _ten_to_the_bowl(numbers, check, report):
    return 10 ** bowl(numbers, check, report)


def _minus_one(numbers, check, report):
    return -1.0


def test_a_trial_that_fails_is_recorded_and_does_not_stop_the_search(tmp_path):
    path = tmp_path / "search"
    found = search(_fails_left, PLANE, path=path, trials=10, random=6)
    failed = [one for one in found.trials if one.state == "failed"]
    assert failed
    assert all(math.isnan(one.value) and one.numbers["x"] < 0 for one in failed)
    assert found.best.numbers["x"] >= 0
    again = search(never, PLANE, path=path, trials=10, random=6)
    assert [replace(one, value=0.0) for one in again.trials] == [replace(one, value=0.0) for one in found.trials]


def _fails_left(numbers, check, report):
    """Fail in each possible way."""
    value = bowl(numbers, check, report)
    if numbers["x"] < -1:
        check(0, math.nan)
    return math.inf if numbers["x"] < 0 else value


def test_all_failing_is_an_error_that_does_not_wait_for_the_last():
    with pytest.raises(InvalidInput, match=r"all 4 trials failed\. .* narrow the ranges"):
        search(failing, PLANE, trials=1000, random=4)


# In parallel


def test_processes_give_the_trials_of_the_same_batches_here():
    arguments = {"trials": 3, "random": 1, "jobs": 2}  # one batch in processes, for they take long to start
    watch = Noted()
    parallel = search(Falling(), PLANE, watch=watch, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakgauge.attacks.inversion.search.run_tasks", _one_by_one)
        assert search(Falling(), PLANE, **arguments) == parallel
    assert parallel.trials[1].numbers != parallel.trials[2].numbers
    assert {name for name, *_ in watch.of("step")} == {f"trial {number}" for number in range(3)}


@pytest.mark.parametrize(
    ("arguments", "batches"),
    [
        ((7, 4, 1), [range(4), range(4, 5), range(5, 6), range(6, 7)]),
        ((7, 4, 2), [range(4), range(4, 6), range(6, 7)]),
        ((3, 4, 2), [range(3)]),
        ((4, 4, 2), [range(4)]),
    ],
    ids=str,
)
def test_random_trials_are_one_batch_and_then_there_are_as_many_as_jobs(arguments, batches):
    assert _batches(*arguments) == batches


def test_an_objective_that_cannot_leave_the_process_is_refused_before_any_work():
    with pytest.raises(InvalidInput, match="or use jobs=1"):
        search(lambda numbers, check, report: 0.0, PLANE, jobs=2)
    assert search(partial(bowl), PLANE, jobs=2, trials=1).best.number == 0


# Optuna and invalid arguments


def test_without_optuna_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[search\]"):
        search(never, PLANE)


def test_nothing_global_is_changed_and_nothing_is_printed(capfd):
    import optuna

    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), list(warnings.filters)
    verbosity, level = optuna.logging.get_verbosity(), logging.getLogger().level
    search(bowl, PLANE, trials=4, random=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), torch.get_num_threads(), list(warnings.filters))
    assert (verbosity, level) == (optuna.logging.get_verbosity(), logging.getLogger().level)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((1, 1), "from a low to a higher"),
        ((2, 1), "from a low to a higher"),
        ((0, math.inf), "the high end of a range must be a finite number"),
        (("a", 1), "the low end of a range must be a finite number"),
        ((0, 1, True), "has no logarithm"),
    ],
    ids=str,
)
def test_a_range_that_is_none_is_refused(ends, message):
    with pytest.raises(InvalidInput, match=message):
        Range(*ends)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranges": {}}, "needs numbers to search for"),
        ({"ranges": {"x": (0, 1)}}, "needs numbers to search for"),
        ({"trials": 0}, "trials must be a whole number"),
        ({"random": 0}, "random must be a whole number"),
        ({"jobs": 1.5}, "jobs must be a whole number"),
        ({"seed": "a"}, "seed must be a whole number"),
    ],
    ids=str,
)
def test_a_search_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        search(never, **{"ranges": PLANE, **arguments})
