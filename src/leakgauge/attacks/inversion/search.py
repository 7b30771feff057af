r"""Hyper-parameter search for an attack (AWA, section 4.2.2, algorithm 2).

Some hyper-parameters of an attack cannot be chosen in advance, such as AWA's :math:`Q` (equation 31). The attacker sees
the final distance of an attack (equation 33), and can therefore try several values and compare their distances:

1. The first ``random`` trials are drawn uniformly (algorithm 2, lines 4 to 8).
2. A Gaussian process is fitted to all earlier trials (equations 35 and 36). Each further trial has the largest expected
   improvement (equations 39 and 40). The process and the proposals come from Optuna's ``GPSampler``, with a Matérn
   kernel and the logarithm of the improvement.

**Batches.** The random trials are one batch. Each later batch has ``jobs`` trials, which are proposed before any of
their values is known. Within a batch, the values of earlier trials are still unknown. Each trial is therefore chosen
such that it and the earlier trials of its batch together have the largest expected improvement. A proposal depends only
on the seed and on the trials before its batch. The same seed and ``jobs`` therefore give the same trials, even if the
search was interrupted.

**Pruning.** A trial may report its value after some steps. The trial is ended early if it is *clearly losing*. Let
:math:`v(s)` be the value of the trial at step :math:`s`, :math:`v_i(s)` the values of the finished trials at the same
step, and :math:`m(s)` the median of :math:`v_i(s)`. The trial is clearly losing if

.. math:: v(s) > m(s) + (m(s) - \min_i v_i(s)),

and if at least five finished trials reported a value at this step. Random trials have no finished trials before them,
so they are never pruned.

**Values for the Gaussian process.** ``GPSampler`` learns from complete trials only. If a pruned or failed trial were
left out, ``GPSampler`` would propose the same hyper-parameters again. A pruned trial therefore gets a final value from
other trials. Among the finished trials that had better values at the step where the pruned trial was ended, the worst
final value is taken. The last value of the pruned trial itself is not used, because it was reported after fewer steps.
A failed trial (NaN, infinite) counts with the worst final value of all trials. Neither a pruned nor a failed trial can
be the best.
"""

from __future__ import annotations

import math
import pickle
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, Literal

from leakgauge.core.checks import finite, whole_number
from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, MissingExtra, TasksFailed
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive
from leakgauge.runtime import Task, Watch, run_tasks
from leakgauge.runtime.cache import Cache, source_digest

#: Hyper-parameters, by name.
Numbers = dict[str, float]
#: The way in which a trial ended. ``cut short`` is a pruned trial.
State = Literal["done", "cut short", "failed"]
#: ``check(step, value)`` records the objective after some steps. It raises an error if the trial is clearly losing.
Check = Callable[[int, float], None]
#: ``evaluate(numbers, check, report)`` is the objective. With several jobs it must be picklable.
Evaluate = Callable[[Numbers, Check, Report], float]

__all__ = ["Check", "Evaluate", "Range", "Search", "Trial", "search"]

#: The number of finished trials that must have reported at a step before a trial is pruned there.
_ENOUGH = 5


@dataclass(frozen=True)
class Range:
    """The interval in which a hyper-parameter is searched.

    Args:
        low: The smallest value, included.
        high: The largest value, included.
        log: Whether the values are searched on a logarithmic scale.
    """

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
class Trial:
    """One evaluation of the objective in a hyper-parameter search.

    Args:
        number: The position of the trial in the search, from 0.
        numbers: A dictionary from the name of each hyper-parameter to its value.
        value: The value of the objective. A pruned trial has the last reported value. A failed trial has NaN.
        curve: A dictionary from steps to the values that the trial reported at these steps.
        state: The way in which the trial ended. ``cut short`` means that the trial was pruned.
    """

    number: int
    numbers: Numbers
    value: float
    curve: dict[int, float] = field(default_factory=dict)
    state: State = "done"


@dataclass(frozen=True)
class Search:
    """The result of a hyper-parameter search, which is the list of its trials.

    Args:
        trials: All trials, in the order of their positions in the search.
        random: The number of trials that were drawn at random before the guided trials began.
    """

    trials: tuple[Trial, ...]
    random: int

    @property
    def best(self) -> Trial:
        """The finished trial with the lowest value (algorithm 2, line 15)."""
        return min(_finished(self.trials), key=lambda trial: trial.value)

    @property
    def running_minimum(self) -> list[float]:
        """The lowest value up to each trial (figure 1). The value is infinite before the first finished trial."""
        values = (trial.value if trial.state == "done" else math.inf for trial in self.trials)
        return list(accumulate(values, min))


def search(  # noqa: PLR0913
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
    """Find the hyper-parameters for which an expensive function is smallest.

    After Ctrl-C, the search returns the trials so far, if at least one trial is finished. If ``evaluate`` catches
    ``KeyboardInterrupt``, the function must raise this exception again.

    Args:
        evaluate: The function to minimise, called as ``evaluate(numbers, check, report)``. It calls ``check(step,
            value)`` with intermediate values, so that a trial can be ended early.
        ranges: A dictionary from the name of each hyper-parameter to its range.
        trials: The number of trials.
        random: The number of trials that are drawn at random before the guided trials.
        seed: The seed of the random trials and of the proposals.
        jobs: The number of trials that run at a time, each in its own process.
        path: A folder for the cache of finished trials. An interrupted search continues from this cache. Several
            searches may share a folder.
        about: A text that identifies the objective. Cached trials are reused only if this text, the source code of the
            objective, the ranges and the other settings of the search are the same.
        cut: Whether trials with clearly worse intermediate values than the other trials are ended early.
        log: Whether the Gaussian process is fitted to the logarithm of the objective, for a positive objective whose
            values span several orders of magnitude. AWA fits the value itself.
        watch: The listener that receives the progress of the trials.
    """
    for name, number in {"trials": trials, "random": random, "jobs": jobs}.items():
        whole_number(name, number)
    _check_search(evaluate, ranges, seed, jobs)
    settings = _Settings(dict(ranges), random, seed, jobs, cut, log, about)
    cache = None if path is None else _TrialCache(Cache(path), settings.definition(evaluate))
    collected = {} if cache is None else cache.read(trials)
    try:
        for batch in _batches(trials, random, jobs):
            earlier = [collected[number] for number in range(batch.start)]
            if batch.start and not _finished(earlier):
                break
            missing = [number for number in batch if number not in collected]
            if not missing:
                continue
            tasks = _tasks(settings, earlier, batch, missing)
            engine = "processes" if jobs > 1 and len(tasks) > 1 else "auto"
            common = {"evaluate": evaluate, "limits": _limits(earlier) if cut else {}}
            for _, trial in run_tasks(tasks, engine=engine, jobs=jobs, watch=watch, common=common):
                collected[trial.number] = trial
                if cache is not None:
                    cache.write(trial)
    except TasksFailed as problem:
        raise problem.__cause__ or problem from None
    except KeyboardInterrupt:
        if not _finished(collected.values()):
            raise
    return _result(collected, random)


def _check_search(evaluate: Evaluate, ranges: Mapping[str, Range], seed: int, jobs: int) -> None:
    """Check the arguments before any trial starts, and raise an error if the search cannot work."""
    if not isinstance(seed, int):
        raise InvalidInput(f"seed must be a whole number, not {seed!r}")
    if not ranges or not all(isinstance(limits, Range) for limits in ranges.values()):
        raise InvalidInput(f"a search needs numbers to search for, as {{name: Range(low, high)}}, not {ranges!r}")
    _optuna()
    if jobs > 1:
        _check_picklable(evaluate)


def _result(collected: Mapping[int, Trial], random: int) -> Search:
    result = Search(tuple(collected[number] for number in sorted(collected)), random)
    if not _finished(result.trials):
        raise InvalidInput(
            f"all {len(result.trials)} trials failed. The objective was NaN or infinite for every choice of numbers. "
            "Evaluate it for one choice to find the cause, or narrow the ranges"
        )
    return result


@dataclass(frozen=True)
class _Settings:
    """The settings that decide which trials a search proposes and when the search prunes a trial."""

    ranges: dict[str, Range]
    random: int
    seed: int
    jobs: int
    cut: bool
    log: bool
    about: str

    def definition(self, evaluate: Evaluate) -> dict[str, Any]:
        """Return all settings that the trials depend on, as plain values. They are the key of the search in a cache."""
        versions = {"optuna": _optuna().__version__, "code": source_digest(evaluate)}
        return {"kind": "search", **asdict(self), **versions}


@dataclass(frozen=True)
class _TrialCache:
    """The cache of one search's finished trials.

    The key of a trial consists of the definition of the search and the index of the trial.

    The hyper-parameters are stored with each trial, so that a continued search does not have to propose them again.
    """

    cache: Cache
    definition: dict[str, Any]

    def read(self, trials: int) -> dict[int, Trial]:
        """Return a dictionary from indices to cached trials, for the indices below ``trials``."""
        entries = {number: self.cache.get(self._of(number)) for number in range(trials)}
        documents = {number: entry.document for number, entry in entries.items() if entry is not None}
        return {number: trial for number, trial in documents.items() if isinstance(trial, Trial)}

    def write(self, trial: Trial) -> None:
        """Write a trial to disk, and return only after it is written."""
        self.cache.put(self._of(trial.number), trial)

    def _of(self, number: int) -> dict[str, Any]:
        return {"search": self.definition, "trial": number}


def _finished(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that were neither pruned nor failed."""
    return [trial for trial in trials if trial.state == "done"]


def _batches(trials: int, random: int, jobs: int) -> list[range]:
    """Divide the trials into batches that run together, and return the indices of the trials in each batch.

    If more trials are added at the end, the earlier batches stay the same.
    """
    starts = [0, *range(random, trials, jobs)]
    return [range(start, min(start + jobs if start else random, trials)) for start in starts]


def _tasks(settings: _Settings, earlier: Sequence[Trial], batch: range, missing: Iterable[int]) -> list[Task]:
    """Return one task for each trial of a batch, except for the trials in the cache."""
    proposed = _propose(settings, _with_values(earlier, settings.log), batch)
    return [Task(f"trial {number}", _run, {"number": number, "numbers": proposed[number]}) for number in missing]


def _run(number: int, numbers: Numbers, evaluate: Evaluate, limits: dict[int, float], report: Report) -> Trial:
    """Evaluate one trial, in this process or in a worker."""
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
    """The exception that ends a trial early, from within its evaluation."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.state = state


def _limits(earlier: Sequence[Trial]) -> dict[int, float]:
    """Return, for each step, the value above which a trial is ended early."""
    columns: dict[int, list[float]] = {}
    for trial in _finished(earlier):
        for step, value in trial.curve.items():
            columns.setdefault(step, []).append(value)
    return {
        step: 2 * statistics.median(values) - min(values) for step, values in columns.items() if len(values) >= _ENOUGH
    }


def _with_values(earlier: Sequence[Trial], log: bool = False) -> list[tuple[Numbers, float]]:
    """Return earlier trials with the values that the Gaussian process learns from.

    The list is empty if no trial is finished.
    """
    finished = _finished(earlier)
    if log and any(trial.value < 0 for trial in finished):
        raise InvalidInput("the objective fell below 0, where it has no logarithm; search without log=True")

    def value_of(trial: Trial) -> float:
        if trial.state == "done":
            return trial.value
        step = next(reversed(trial.curve), None) if trial.state == "cut short" else None
        ahead = [other.value for other in finished if step in other.curve and other.curve[step] < trial.value]
        return max(ahead or [other.value for other in finished])

    values = [value_of(trial) for trial in earlier] if finished else []
    if log:
        values = [math.log(max(value, sys.float_info.min)) for value in values]
    return [(trial.numbers, value) for trial, value in zip(earlier, values, strict=False)]


def _propose(settings: _Settings, earlier: Sequence[tuple[Numbers, float]], batch: range) -> dict[int, Numbers]:
    """Return a mapping from the index of each trial in a batch to the hyper-parameters of the trial.

    Each batch has a new study of Optuna, and each trial has its own seeded sampler.
    """
    optuna = _optuna()
    spaces = {
        name: optuna.distributions.FloatDistribution(limits.low, limits.high, log=limits.log)
        for name, limits in settings.ranges.items()
    }
    proposed = {}
    with _quiet(optuna):
        study = optuna.create_study()
        for numbers, value in earlier:
            study.add_trial(optuna.trial.create_trial(params=numbers, distributions=spaces, value=value))
        for number in batch:
            sampler_seed = derive(settings.seed, "trial", number) % 2**32
            study.sampler = optuna.samplers.GPSampler(seed=sampler_seed, n_startup_trials=settings.random)
            proposed[number] = dict(study.ask(spaces).params)
    return proposed


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as problem:
        raise MissingExtra("the hyper-parameter search", "optuna", "search") from problem
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Suppress Optuna's log messages about each study and its warnings about experimental features."""
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
            f"with several jobs the objective is sent to other processes, and {evaluate!r} cannot be pickled "
            f"({problem}). Make it a function of a module, or a frozen dataclass with __call__, or use jobs=1"
        ) from problem
