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
