"""Each rule by itself, together, and for several problems at once."""

import pytest
import torch

from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Plateau, Threshold
from leakgauge.core.errors import InvalidInput

NAN = float("nan")


def watch(rule, *columns):
    """The step and kind at which each problem, a column of losses, would stop for the first time."""
    watcher, found = rule.begin(len(columns)), [None] * len(columns)
    for step, losses in enumerate(zip(*columns, strict=True)):
        for row, outcome in enumerate(watcher.check(step, torch.tensor(losses))):
            if outcome is not None and found[row] is None:
                assert outcome.step == step
                found[row] = outcome
    return found


def stops(rule, *columns):
    return [outcome and (outcome.kind, outcome.step) for outcome in watch(rule, *columns)]


def epafl_algorithm_2(losses, patience):
    """The step at which EPAFL's counter (lines 2 to 9) reaches the patience."""
    best, wait = float("inf"), 0
    for step, loss in enumerate(losses):
        best, wait = (loss, 0) if loss < best else (best, wait + 1)
        if wait == patience:
            return step
    return None


def test_max_steps_counts_steps():
    assert stops(MaxSteps(3), [5.0, 4.0, 3.0], [1.0, 1.0, 1.0]) == [("finished", 2)] * 2
    assert stops(MaxSteps(4), [5.0, 4.0, 3.0]) == [None]
    assert stops(MaxSteps(1), [5.0]) == [("finished", 0)]
    assert MaxSteps(7).max_steps == 7


def test_threshold_is_strict_and_each_problem_its_own():
    columns = [1.0, 0.5, 0.49], [0.1, 0.2, 0.3], [1.0, 1.0, 1.0]
    assert stops(Threshold(0.5), *columns) == [("converged", 2), ("converged", 0), None]
    assert Threshold(0.5).max_steps is None


def test_a_threshold_is_never_met_by_nan():
    assert stops(Threshold(0.5), [NAN, NAN]) == [None]


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize(
    "losses",
    [
        [5, 4, 3, 2, 1, 0.5, 0.2],  # always better
        [5, 5, 5, 5, 5, 5, 5],  # an equal loss is no improvement
        [5, 6, 4, 6, 6, 3, 7],  # oscillates, and recovers in time
        [5, 4, 4.5, 4.2, 4.1, 3, 2],  # better than the last step is not better than the best
    ],
)
def test_plateau_is_epafls_algorithm_2(losses, patience):
    (found,) = stops(Plateau(patience), [float(loss) for loss in losses])
    expected = epafl_algorithm_2(losses, patience)
    assert found == (None if expected is None else ("plateau", expected))


def test_plateau_watches_each_problem_by_itself():
    columns = [3.0, 3.0, 3.0, 3.0], [3.0, 2.0, 2.0, 2.0], [3.0, 2.0, 1.0, 0.5]
    assert stops(Plateau(2), *columns) == [("plateau", 2), ("plateau", 3), None]


def test_a_plateaus_tolerance_is_relative_to_the_best():
    slow = [100.0 * 0.99**step for step in range(10)]
    assert stops(Plateau(3), slow) == [None]
    assert stops(Plateau(3, tolerance=0.05), slow) == [("plateau", 3)]
    assert stops(Plateau(6, tolerance=0.05), slow) == [None]  # five steps make up for the 5 %
    assert stops(Plateau(2, tolerance=0.05), [-1.0, -1.01, -1.02]) == [("plateau", 2)]


def test_keep_preserves_the_wait_of_those_that_go_on():
    watcher = Plateau(3).begin(3)
    for step, losses in enumerate([[1.0, 5.0, 1.0], [1.0, 4.0, 0.9], [1.0, 3.0, 0.9]]):
        assert watcher.check(step, torch.tensor(losses)) == [None] * 3
    watcher.keep(torch.tensor([2, 0]))
    second, first = watcher.check(3, torch.tensor([0.9, 1.0]))
    assert second is None
    assert first is not None
    assert first.kind == "plateau"


def test_any_of_is_whichever_comes_first_for_each_problem():
    rule = AnyOf(Threshold(0.5), Plateau(2), MaxSteps(4))
    columns = [1.0, 0.4, 0.3, 0.2], [1.0, 1.0, 1.0, 1.0], [4.0, 3.0, 2.0, 1.0]
    assert stops(rule, *columns) == [("converged", 1), ("plateau", 2), ("finished", 3)]


def test_any_of_keeps_the_rows_of_all_its_rules():
    watcher = AnyOf(MaxSteps(9), Plateau(2)).begin(2)
    watcher.check(0, torch.tensor([1.0, 1.0]))
    watcher.check(1, torch.tensor([0.5, 1.0]))
    watcher.keep(torch.tensor([1]))
    (outcome,) = watcher.check(2, torch.tensor([1.0]))
    assert outcome is not None
    assert outcome.kind == "plateau"


def test_the_tightest_limit_counts():
    assert AnyOf(MaxSteps(9), MaxSteps(5), Threshold(1.0)).max_steps == 5
    assert AnyOf(Threshold(1.0), Plateau(3)).max_steps is None
    assert AnyOf(AnyOf(MaxSteps(2)), MaxSteps(3)).max_steps == 2


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (MaxSteps(1), "used all 1 steps, with a last loss of 0.25"),
        (Threshold(0.5), "converged at step 0, where the loss fell below 0.5"),
        (AnyOf(Threshold(0.3), MaxSteps(1)), "converged at step 0, where the loss fell below 0.3"),
    ],
    ids=str,
)
def test_outcomes_are_sentences(rule, sentence):
    (outcome,) = watch(rule, [0.25])
    assert str(outcome) == sentence


def test_a_plateau_says_so():
    (outcome,) = watch(Plateau(2), [1.0, 1.0, 1.0])
    assert str(outcome) == "stopped on a plateau at step 2, after 2 steps without improvement"


@pytest.mark.parametrize("steps", [0, -3, 2.5, "10", None, True])
def test_steps_must_be_a_whole_number_of_at_least_one(steps):
    with pytest.raises(InvalidInput, match="steps must be a whole number of at least 1, not"):
        MaxSteps(steps)


@pytest.mark.parametrize("value", [NAN, float("inf"), "small", None])
def test_a_threshold_must_be_a_number(value):
    with pytest.raises(InvalidInput, match="threshold must be a finite number, not"):
        Threshold(value)


@pytest.mark.parametrize("settings", [{"patience": 0}, {"patience": 1.5}, {"patience": 2, "tolerance": 1.0}], ids=str)
def test_a_plateau_that_cannot_work_is_refused(settings):
    with pytest.raises(InvalidInput, match=r"patience|tolerance"):
        Plateau(**settings)


def test_any_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="at least one"):
        AnyOf()


def test_rules_are_their_own_record():
    rule = AnyOf(Threshold(0.001), Plateau(patience=10), MaxSteps(300))
    assert repr(rule) == "AnyOf(Threshold(value=0.001), Plateau(patience=10, tolerance=0.0), MaxSteps(steps=300))"
    assert rule == eval(repr(rule))
    assert hash(rule) == hash(eval(repr(rule)))
