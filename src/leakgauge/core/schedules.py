r"""Learning-rate schedules within a round, as factors of the learning rate.

A schedule is a text such as ``"cosine"`` or ``"step(every=2, factor=0.5)"``, or a tuple of factors, one for each local
step. A text can be stored in a capture, in TOML and in the configuration of an app. With :math:`t = 0, 1, \dots` the
local step and :math:`T` the number of local steps, the factors are:

===============  ====================================================  ==========================================
name             factor                                                the same in ``torch.optim.lr_scheduler``
===============  ====================================================  ==========================================
``constant``     :math:`1`                                             none
``step``         :math:`\gamma^{\lfloor t/n \rfloor}`                  ``StepLR(step_size=n, gamma)``
``exponential``  :math:`\gamma^t`                                      ``ExponentialLR(gamma)``
``cosine``       :math:`f + (1 - f)(1 + \cos(\pi t / T)) / 2`          ``CosineAnnealingLR(T, eta_min=f * lr)``
``linear``       :math:`a + (b - a) \min(t, n) / n`                    ``LinearLR(a, b, total_iters=n)``
===============  ====================================================  ==========================================

The options are ``every`` (n) and ``factor`` (:math:`\gamma`) of ``step``, ``factor`` of ``exponential``, ``final`` (f)
of ``cosine``, and ``start`` (a), ``end`` (b) and ``steps`` (n) of ``linear``. With ``per="epoch"``, t counts epochs and
T is the number of epochs. If a tuple has fewer factors than there are steps, the last factor holds for the others.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from leakgauge.core.checks import is_finite
from leakgauge.core.errors import InvalidInput, UnknownName, shown
from leakgauge.core.limits import MOST_FACTOR

#: A schedule as it is stored.
Schedule = str | tuple[float, ...]
CONSTANT = "constant"
#: The largest number of characters of a text, and of factors in a tuple.
LONGEST_TEXT, MOST_FACTORS = 200, 1_000_000


def _step(t: int, _: int, every: int = 1, factor: float = 0.1) -> float:
    return float(factor ** (t // every))


def _exponential(t: int, _: int, factor: float = 0.9) -> float:
    return float(factor**t)


def _cosine(t: int, total: int, final: float = 0.0) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * t / total)) / 2


def _linear(t: int, _: int, start: float = 1 / 3, end: float = 1.0, steps: int = 5) -> float:
    return start + (end - start) * min(t, steps) / steps


#: The formulas by name. Each is a function of the step, the number of steps and the options.
FORMULAS: dict[str, Callable[..., float]] = {
    CONSTANT: lambda t, total: 1.0,
    "step": _step,
    "exponential": _exponential,
    "cosine": _cosine,
    "linear": _linear,
}
#: The options that count steps. The other options are factors of at least 0.
_COUNTS = ("every", "steps")


def checked_schedule(schedule: object) -> Schedule:
    """Return a schedule as a text or a tuple of factors, or raise an error if the schedule is not valid.

    Args:
        schedule: A text, or a sequence of factors.
    """
    if isinstance(schedule, (tuple, list)):
        valid = all(is_finite(value) and 0 <= value <= MOST_FACTOR for value in schedule)
        if not 0 < len(schedule) <= MOST_FACTORS or not valid:
            raise InvalidInput(
                f"schedule must hold factors of the learning rate, one for each step, from 0 to {MOST_FACTOR:g}"
            )
        return tuple(float(value) for value in schedule)
    if not isinstance(schedule, str) or len(schedule) > LONGEST_TEXT:
        raise InvalidInput(
            f"schedule must be a text such as 'cosine', or a list of factors, one for each local step, not "
            f"{shown(schedule)}"
        )
    _read(schedule)
    return schedule


def factor_at(schedule: Schedule, step: int, steps: int, epoch: int, epochs: int) -> float:
    """Return the factor by which a schedule multiplies the learning rate at one local step.

    Args:
        schedule: The schedule, as a text or as a tuple of factors.
        step: The index of the local step.
        steps: The number of local steps.
        epoch: The index of the epoch that the step belongs to.
        epochs: The number of epochs.
    """
    if isinstance(schedule, tuple):
        return schedule[min(step, len(schedule) - 1)]
    formula, options, per_epoch = _read(schedule)
    try:
        factor = formula(epoch, epochs, **options) if per_epoch else formula(step, steps, **options)
    except OverflowError:
        factor = math.inf
    if not factor <= MOST_FACTOR:
        raise InvalidInput(
            f"the schedule {schedule!r} multiplies the learning rate by more than {MOST_FACTOR:g} at step {step}"
        )
    return factor


@lru_cache(maxsize=64)  # a schedule is read again for every local step
def _read(text: str) -> tuple[Callable[..., float], dict[str, Any], bool]:
    """Parse a schedule into its formula, its options and whether it counts epochs. No code in the text is executed."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("positions")
        name, options = call.func.id, {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as problem:
        raise InvalidInput(
            f"the schedule {text!r} cannot be read. Write a name with options, as in 'step(every=2, factor=0.5)'."
        ) from problem
    if name not in FORMULAS:
        raise UnknownName("schedule", name, FORMULAS)
    per = options.pop("per", "step")
    if per not in ("step", "epoch"):
        raise InvalidInput(f"per must be 'step' or 'epoch' in the schedule {text!r}, not {per!r}")
    formula = FORMULAS[name]
    valid = () if name == CONSTANT else formula.__code__.co_varnames[2 : formula.__code__.co_argcount]
    for option, value in options.items():
        if option not in valid:
            raise UnknownName(f"option of the schedule {name!r} called", option, (*valid, "per"))
        whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9
        if not (whole if option in _COUNTS else is_finite(value) and 0 <= value <= 1000):
            raise InvalidInput(f"{option} is not valid in the schedule {text!r}")
    return formula, options, per == "epoch"
