"""Checks of arguments that several loaders and partitions share."""

from __future__ import annotations

from numbers import Integral

from leakscope.errors import InvalidInput


def at_least(least: int, **values: object) -> None:
    """Refuse a named value that is not a whole number of at least ``least``; ``None`` passes."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}")
