"""The speed figures on a client so small that they take a moment; what they are worth is measured elsewhere."""

import json
import os
import sys
from dataclasses import replace

import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.reproduction import speed
from leakgauge.reproduction.speed import FIGURES, WAYS, Case, Setting, measure_speed, memory_of, time_of

TINY = Setting(side=8, channels=(4,), dense=8, classes=4, samples=5, epochs=2, batch_size=2, lr=0.05, seconds=0.0)


@pytest.fixture
def here(monkeypatch):
    """Measure in this process, and note what is measured in which order."""
    order = []

    def call(function, way, setting):
        order.append((function.__name__, way, setting))
        return function(way, setting)

    monkeypatch.setattr(speed, "_in_a_process", call)
    return order


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_the_plain_loop_and_the_simulation_are_the_same_step(batch_size):
    case = Case.of(replace(TINY, batch_size=batch_size))
    plain = WAYS["plain"](case)().flatten(0, 1)
    assert plain.norm() > 0
    for way in ("simulated", "adjoint"):
        assert torch.allclose(WAYS[way](case)(), plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))


def test_the_training_that_is_timed_is_that_of_all_local_steps(monkeypatch):
    taken = []
    original = speed.local_sgd

    def counted(model, weights, batches, training, **options):
        taken.append((len(list(batches)), options))
        return original(model, weights, batches, training, **options)

    monkeypatch.setattr(speed, "local_sgd", counted)
    WAYS["training"](Case.of(TINY))()
    assert taken == [(2 * 3, {})]
    default = Case.of(Setting(side=8, channels=(2,), dense=4)).observation.training
    assert (default.epochs, default.batch_size, default.samples, default.steps) == (10, 5, 50, 100)


def test_the_measurements_take_turns_and_the_adjoint_has_batches_of_one(here):
    found = measure_speed(TINY, repeats=2).to_json()
    names = [(function, way) for function, way, _ in here]
    turn = [("time_of", way) for way in ("training", "simulated", "plain", "surrogate")] + [("memory_of", "adjoint")]
    assert names == turn * 2
    assert [setting.batch_size for _, _, setting in here] == [2, 2, 2, 2, 1] * 2
    assert found.keys() == {*FIGURES, "seconds", "repeats"}
    assert found["repeats"] == 2
    assert all(found[name] > 0 for name in FIGURES if name.endswith(("training", "plain", "simulated")))


def test_ratios_are_taken_within_a_turn_and_memory_is_the_largest(monkeypatch):
    """A machine that is ten times as slow in one turn changes no ratio."""
    seconds = {"training": 1.0, "simulated": 2.5, "plain": 5.0, "surrogate": 0.25}
    slow = iter([1.0] * 4 + [10.0] * 4 + [3.0] * 4)
    peaks = iter([5, 9, 7])

    def made_up(function, way, setting):
        if function is memory_of:
            return next(peaks) * 2**20
        return {"seconds": seconds[way] * next(slow), "norm": 1.0}

    monkeypatch.setattr(speed, "_in_a_process", made_up)
    found = measure_speed(TINY, repeats=3)
    assert (found.step_over_training, found.step_over_plain, found.surrogate_over_simulated) == (2.5, 0.5, 0.1)
    assert (found.adjoint_500_peak_mib, found.seconds["training"]) == (9, 3.0)


def test_steps_that_do_not_compute_the_same_are_not_compared(here, monkeypatch):
    monkeypatch.setitem(WAYS, "plain", lambda case: lambda: WAYS["simulated"](case)() * 1.1)
    with pytest.raises(RuntimeError, match="the simulated and the plain step differ"):
        measure_speed(TINY, repeats=1)


def test_the_first_run_is_not_timed_and_short_ones_are_repeated(monkeypatch):
    now = [100.0]
    lengths = iter([50.0, 3.0, 5.0, 4.0])

    def run():
        now[0] += next(lengths)
        return torch.ones(4)

    monkeypatch.setattr(speed.time, "process_time", lambda: now[0])
    monkeypatch.setitem(WAYS, "training", lambda case: run)
    assert time_of("training", replace(TINY, seconds=10.0)) == {"seconds": 4.0, "norm": 2.0}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the peak of the whole process is known")
def test_memory_is_what_a_run_adds_to_a_process_of_its_own():
    """This process holds 600 MiB, of which the measuring one must know nothing."""
    ballast = torch.ones(600 * 2**20 // 4)
    pid, one_thread, grown = speed._in_a_process(grow, 200)
    assert pid != os.getpid()
    assert one_thread
    assert 195 < grown / 2**20 < 300
    assert ballast[0] == 1


def grow(mebibytes: int) -> tuple[int, bool, int]:
    WAYS["adjoint"] = lambda case: lambda: torch.ones(mebibytes * 2**20 // 4)
    return os.getpid(), torch.get_num_threads() == 1, memory_of("adjoint", TINY)


def test_no_measurement_is_refused():
    with pytest.raises(InvalidInput, match="repeats must be at least 1"):
        measure_speed(TINY, repeats=0)


def test_the_command_line_prints_one_object_or_a_table(here, monkeypatch, command):
    monkeypatch.setattr(speed, "DLF", TINY)
    code, out, _ = command("bench", "speed", "--json", "--repeats", "1")
    assert code == 0
    (line,) = out.splitlines()
    assert json.loads(line).keys() >= FIGURES.keys()
    assert len(here) == 5
    code, out, _ = command("bench", "speed")
    assert code == 0
    assert len(here) == 5 + 15
    assert [name for name in (*FIGURES, "3 turns", "median") if name not in out] == []


def test_the_list_names_it(command):
    assert command("bench", "--list")[1].split()[-1] == "speed"
    out = command("bench", "speed", "--list")[1]
    assert [name for name in FIGURES if name not in out] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("speed", "--clients", "1"), "bench speed has no option --clients"),
        (("speed", "--no-save"), "bench speed has no option --save/--no-save"),
        (("speed", "--repeats", "0"), "repeats"),
        (("speed", "--turns", "2"), "--turns"),
        (("dlf", "--repeats", "2"), "bench dlf has no option --repeats"),
        (("sped",), "did you mean 'speed'"),
        ((), "which benchmark?"),
    ],
)
def test_mistakes_are_one_sentence(command, words, said):
    code, _, err = command("bench", *words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
