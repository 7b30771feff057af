"""Check arguments, and refuse the ones that cannot work before any work starts."""

from __future__ import annotations

import math
from numbers import Integral

from leakgauge.core.errors import InvalidInput


def whole(what: str, value: object) -> None:
    """Refuse what is not a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{what} must be a whole number of at least 1, not {value!r}")


def count(what: str, value: object) -> None:
    """Refuse what is not a whole number of at least 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"{what} must be a whole number of at least 0, not {value!r}")


def positive(what: str, value: object) -> None:
    """Refuse what is not a finite number above 0."""
    if not _is_number(value) or not value > 0:  # type: ignore[operator]
        raise InvalidInput(f"{what} must be a number above 0, not {value!r}")


def not_negative(what: str, value: object) -> None:
    """Refuse what is not a finite number of at least 0."""
    if not _is_number(value) or not value >= 0:  # type: ignore[operator]
        raise InvalidInput(f"{what} must be a number of at least 0, not {value!r}")


def finite(what: str, value: object) -> None:
    """Refuse what is not a finite number."""
    if not _is_number(value):
        raise InvalidInput(f"{what} must be a finite number, not {value!r}")


def boolean(what: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} must be True or False, not {value!r}")


def at_least(least: int, **values: object) -> None:
    """Refuse a named value that is not a whole number of at least ``least``; ``None`` passes."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}")


def strength(what: str, value: object, *, below: float = math.inf) -> None:
    """Refuse what is not a finite number of at least 0 and below a limit."""
    if not _is_number(value) or not 0 <= value < below:  # type: ignore[operator]
        limit = "" if below == math.inf else f" and below {below:g}"
        raise InvalidInput(f"{what} must be a number of at least 0{limit}, not {value!r}; 0 is no defence")


def share(what: str, value: object) -> None:
    """Refuse what is not a number above 0 and up to 1."""
    if not _is_number(value) or not 0 < value <= 1:  # type: ignore[operator]
        raise InvalidInput(
            f"{what} must be a number above 0 and up to 1, not {value!r}; 1 is no defence, 0 sends nothing"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
