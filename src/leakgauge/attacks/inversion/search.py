r"""The outer search: named numbers for which an expensive function is smallest (AWA, section 4.2.2, algorithm 2).

An attack has numbers that nobody can guess, such as AWA's :math:`Q` (31). The attacker sees how well an attack ended
(33), so the attacks themselves can be tried and compared:

1. the first ``random`` trials are drawn uniformly (algorithm 2, lines 4 to 8);
2. each further one is where a Gaussian process over all earlier trials (35, 36) promises the largest expected
   improvement (39, 40), by Optuna's ``GPSampler`` (a Matérn kernel, the logarithm of the improvement).

**In batches.** The random trials are one batch; after them ``jobs`` trials at a time are proposed without knowing each
other's values, the later ones for the joint improvement with those that are pending. What a batch proposes hangs on
the seed and on the trials before the batch alone: the same seed and ``jobs`` give the same trials, however often the
search was interrupted.

**Cut short.** A trial may report its value on the way. It ends early when it is *clearly losing*: when it lies above
the median of the finished trials at the same step by more than that median lies above their best,

.. math:: v(s) > m(s) + (m(s) - \min_i v_i(s)),

with at least five finished trials that reported at this step. Random trials, which nothing precedes, are never cut.

**What the model is told.** ``GPSampler`` learns from complete trials only, and would propose a place again where it
was told nothing. So a trial that was cut short counts as if it had kept its rank, with the worst final value of the
finished trials that were ahead of it when it was cut; its own last value, after fewer steps, is no value of the same
function. One that failed (NaN, infinite) counts with the worst final value of all. Neither can be the best.
"""

from __future__ import annotations

import math
import pickle
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from leakgauge.attacks.inversion.trials import Numbers, State, Trial, TrialFile, done
from leakgauge.core.checks import finite, whole_number
from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, MissingExtra, TasksFailed
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive
from leakgauge.runtime import Task, Watch, run_tasks

#: ``check(step, value)`` notes the objective on the way, and raises where the trial is not worth going on with.
Check = Callable[[int, float], None]
#: ``evaluate(numbers, check, report)`` is the objective; with several jobs it must be picklable.
Evaluate = Callable[[Numbers, Check, Report], float]

__all__ = ["Check", "Evaluate", "Range", "Search", "Trial", "search"]

_ENOUGH = 5  # finished trials, before any other is called losing


@dataclass(frozen=True)
class Range:
    """Where a number may lie, both ends included; ``log`` searches its logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        finite("the low end of a range", self.low)
        finite("the high end of a range", self.high)
        if not self.low < self.high:
            raise InvalidInput(f"a range must go from a low to a higher number, not from {self.low} to {self.high}")
        if self.log and self.low <= 0:
            raise InvalidInput(f"a range from {self.low} has no logarithm; start above 0, or leave out log=True")


@dataclass(frozen=True)
class Search:
    """What a search found; ``random`` of its trials were drawn before guided ones began."""

    trials: tuple[Trial, ...]
    random: int

    @property
    def best(self) -> Trial:
        """The trial that ended lowest (algorithm 2, line 15)."""
        return min(done(self.trials), key=lambda trial: trial.value)

    @property
    def running_minimum(self) -> list[float]:
        """The lowest value up to each trial (figure 1), infinite before the first that ran to its end."""
        values = (trial.value if trial.state == "done" else math.inf for trial in self.trials)
        return list(accumulate(values, min))


def search(
    evaluate: Evaluate,
    ranges: Mapping[str, Range],
    *,
    trials: int = 50,
    random: int = 12,
    seed: int = 0,
    jobs: int = 1,
    path: Location | None = None,
    about: str = "",
    cut: bool = True,
    log: bool = False,
    watch: Watch | None = None,
) -> Search:
    """Find the numbers within ``ranges`` for which ``evaluate(numbers, check, report)`` is smallest.

    ``jobs`` trials at a time run in processes of their own. ``cut`` ends trials that are clearly losing. ``log`` is for
    a positive objective that spans decades: the model sees its logarithm, where AWA's sees the value. With ``path``,
    each trial is added to a file of JSON lines when it ends, and a search that finds its file goes on after it;
    ``about`` says in words what is searched, and like ranges, ``random`` and seed must be that of the file.
    Ctrl-C returns what there is, if any trial ran to its end; an objective that catches it must raise it again.
    """
    for what, number in {"trials": trials, "random": random, "jobs": jobs}.items():
        whole_number(what, number)
    if not isinstance(seed, int):
        raise InvalidInput(f"seed must be a whole number, not {seed!r}")
    if not ranges or not all(isinstance(one, Range) for one in ranges.values()):
        raise InvalidInput(f"a search needs numbers to search for, as {{name: Range(low, high)}}, not {ranges!r}")
    _optuna()
    if jobs > 1:
        _check_picklable(evaluate)
    bounds = {name: asdict(one) for name, one in ranges.items()}
    of = {"about": about, "seed": seed, "random": random, "ranges": bounds}
    file = None if path is None else TrialFile(path, of)
    found = {} if file is None else {trial.number: trial for trial in file.trials if trial.number < trials}
    try:
        for batch in _batches(trials, random, jobs):
            earlier = [found[number] for number in range(batch.start)]
            if batch.start and not done(earlier):
                break
            missing = [number for number in batch if number not in found]
            proposed = _propose(ranges, _told(earlier, log), batch, random, seed) if missing else {}
            limits = _limits(earlier) if cut else {}
            common = {"evaluate": evaluate, "limits": limits}
            tasks = [
                Task(f"trial {number}", _run, {"number": number, "numbers": proposed[number]}) for number in missing
            ]
            engine = "processes" if jobs > 1 and len(tasks) > 1 else "auto"
            for _, trial in run_tasks(tasks, engine=engine, jobs=jobs, watch=watch, common=common):
                found[trial.number] = trial
                if file is not None:
                    file.append(trial)
    except TasksFailed as problem:
        raise problem.__cause__ or problem from None
    except KeyboardInterrupt:
        if not done(found.values()):
            raise
    result = Search(tuple(found[number] for number in sorted(found)), random)
    if not done(result.trials):
        raise InvalidInput(
            f"all {len(result.trials)} trials failed: the objective was NaN or infinite for whatever numbers were "
            "tried; look at it for one choice of them, or narrow the ranges"
        )
    return result


def _batches(trials: int, random: int, jobs: int) -> list[range]:
    """The trials that are proposed together; a batch does not change with the number of trials after it."""
    starts = [0, *range(random, trials, jobs)]
    return [range(start, min(start + jobs if start else random, trials)) for start in starts]


def _run(number: int, numbers: Numbers, evaluate: Evaluate, limits: dict[int, float], report: Report) -> Trial:
    """Evaluate one trial, here or in a worker."""
    curve: dict[int, float] = {}

    def check(step: int, value: float) -> None:
        if not math.isfinite(value):
            raise _Ended("failed")
        curve[int(step)] = float(value)
        if value > limits.get(int(step), math.inf):
            raise _Ended("cut short")

    state: State = "done"
    try:
        value = float(evaluate(dict(numbers), check, report))
    except _Ended as end:
        state = end.state
        value = next(reversed(curve.values()), math.nan)
    if state == "failed" or not math.isfinite(value):
        return Trial(number, numbers, math.nan, curve, "failed")
    return Trial(number, numbers, value, curve, state)


class _Ended(Exception):
    """Ends a trial from within its evaluation."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.state = state


def _limits(earlier: Sequence[Trial]) -> dict[int, float]:
    """The value at each step above which a trial is clearly losing."""
    columns: dict[int, list[float]] = {}
    for trial in done(earlier):
        for step, value in trial.curve.items():
            columns.setdefault(step, []).append(value)
    return {
        step: 2 * statistics.median(values) - min(values) for step, values in columns.items() if len(values) >= _ENOUGH
    }


def _told(earlier: Sequence[Trial], log: bool = False) -> list[tuple[Numbers, float]]:
    """Earlier trials with the value that the model is told of each; none before the first ran to its end."""
    ended = done(earlier)
    if log and any(trial.value < 0 for trial in ended):
        raise InvalidInput("the objective fell below 0, where it has no logarithm; search without log=True")

    def told(trial: Trial) -> float:
        if trial.state == "done":
            return trial.value
        step = next(reversed(trial.curve), None) if trial.state == "cut short" else None
        ahead = [one.value for one in ended if step in one.curve and one.curve[step] < trial.value]
        return max(ahead or [one.value for one in ended])

    values = [told(trial) for trial in earlier] if ended else []
    if log:
        values = [math.log(max(value, sys.float_info.min)) for value in values]
    return [(trial.numbers, value) for trial, value in zip(earlier, values, strict=False)]


def _propose(
    ranges: Mapping[str, Range], told: Sequence[tuple[Numbers, float]], batch: range, random: int, seed: int
) -> dict[int, Numbers]:
    """The numbers of a batch of trials: a new study and, for each trial, a sampler with a seed of its own."""
    optuna = _optuna()
    spaces = {
        name: optuna.distributions.FloatDistribution(one.low, one.high, log=one.log) for name, one in ranges.items()
    }
    proposed = {}
    with _quiet(optuna):
        study = optuna.create_study()
        for numbers, value in told:
            study.add_trial(optuna.trial.create_trial(params=numbers, distributions=spaces, value=value))
        for number in batch:
            sampler_seed = derive(seed, "trial", number) % 2**32
            study.sampler = optuna.samplers.GPSampler(seed=sampler_seed, n_startup_trials=random)
            proposed[number] = dict(study.ask(spaces).params)
    return proposed


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as problem:
        raise MissingExtra("the search for an attack's numbers", "optuna", "search") from problem
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keep Optuna from logging each study and from warning that parts of it are new."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _check_picklable(evaluate: Evaluate) -> None:
    try:
        pickle.dumps(evaluate)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise InvalidInput(
            f"with several jobs the objective goes to other processes, which is not possible for {evaluate!r} "
            f"({problem}); make it a function of a module, or a frozen dataclass with __call__, or use jobs=1"
        ) from problem
