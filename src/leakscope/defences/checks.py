"""Checks of settings that several defences share: one that cannot work is refused when it is made."""

from __future__ import annotations

import math

from leakscope.errors import InvalidInput


def strength(what: str, value: object, *, below: float = math.inf) -> None:
    """Refuse what is not a finite number of at least 0 and below a limit."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < below:  # type: ignore[operator]
        limit = "" if below == math.inf else f" and below {below:g}"
        raise InvalidInput(f"{what} must be a number of at least 0{limit}, not {value!r}; 0 is no defence")


def share(what: str, value: object) -> None:
    """Refuse what is not a number above 0 and up to 1."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:  # type: ignore[operator]
        raise InvalidInput(
            f"{what} must be a number above 0 and up to 1, not {value!r}; 1 is no defence, 0 sends nothing"
        )


def above_zero(what: str, value: object) -> None:
    """Refuse what is not a finite number above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:  # type: ignore[operator]
        raise InvalidInput(f"{what} must be a number above 0, not {value!r}")
