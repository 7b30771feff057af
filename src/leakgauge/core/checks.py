"""Checks of the numbers and booleans that users pass as arguments.

Each check returns the value, or raises :class:`~leakgauge.core.errors.InvalidInput` with the name of the argument.
"""

from __future__ import annotations

import math
import sys
from numbers import Integral

from leakgauge.core.errors import InvalidInput, shown


def whole_number(name: str, value: object, *, at_least: int = 1) -> int:
    """Return the value if it is a whole number, and raise an error otherwise.

    Args:
        name: The name of the argument, for the error message.
        value: The value to check. Booleans are not accepted. Whole numbers of numpy are accepted.
        at_least: The smallest number that is accepted.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < at_least:
        raise InvalidInput(f"{name} must be a whole number of at least {at_least}, not {shown(value)}")
    return int(value)


def positive(name: str, value: object, *, up_to: float = math.inf, hint: str = "") -> float:
    """Return the value if it is a finite number above 0, and raise an error otherwise.

    Args:
        name: The name of the argument, for the error message.
        value: The value to check.
        up_to: The largest number that is accepted.
        hint: Words about the limits, which are added to the error message.
    """
    if not (is_finite(value) and 0 < value <= up_to):  # type: ignore[operator]
        raise _refused(name, "a number above 0", " and up to", up_to, value, hint)
    return value  # type: ignore[return-value]


def not_negative(name: str, value: object, *, below: float = math.inf, hint: str = "") -> float:
    """Return the value if it is a finite number of at least 0, and raise an error otherwise.

    Args:
        name: The name of the argument, for the error message.
        value: The value to check.
        below: The upper limit. Only numbers below it are accepted.
        hint: Words about the limits, which are added to the error message.
    """
    if not (is_finite(value) and 0 <= value < below):  # type: ignore[operator]
        raise _refused(name, "a number of at least 0", " and below", below, value, hint)
    return value  # type: ignore[return-value]


def finite(name: str, value: object) -> float:
    """Return the value if it is a finite number, and raise an error otherwise.

    Args:
        name: The name of the argument, for the error message.
        value: The value to check.
    """
    if not is_finite(value):
        raise InvalidInput(f"{name} must be a finite number, not {shown(value)}")
    return value  # type: ignore[return-value]


def boolean(name: str, value: object) -> bool:
    """Return the value if it is ``True`` or ``False``, and raise an error otherwise.

    Args:
        name: The name of the argument, for the error message.
        value: The value to check.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {shown(value)}")
    return value


def is_finite(value: object) -> bool:
    """Return whether a value is a finite number that fits into a float. Booleans do not count as numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _refused(name: str, kind: str, joint: str, limit: float, value: object, hint: str) -> InvalidInput:
    limits = "" if limit == math.inf else f"{joint} {limit:g}"
    note = f" ({hint})" if hint else ""
    return InvalidInput(f"{name} must be {kind}{limits}, not {shown(value)}{note}")
