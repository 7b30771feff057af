"""Checks of settings that several parts share: a part that cannot work is refused when it is made."""

from __future__ import annotations

import math

from leakscope.errors import InvalidInput


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


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
