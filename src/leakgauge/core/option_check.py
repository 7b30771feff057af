"""Checks of the options that users set by name, against the annotations of the function that takes them.

Configuration files and command lines name a factory and its options, such as ``{ name = "dlg", steps = 300 }``. The
annotations of the factory state which values each option can take, so all factories share this one check. A factory
itself checks only what its annotations cannot state, such as the largest value.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from leakgauge.core.errors import InvalidInput, UnknownName, shown

#: Whole numbers beyond this fit into no tensor.
LARGEST = 2**63
#: The words for the values of plain types.
_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    type(None): "left out",
}


def check_options(owner: str, factory: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Raise an error if an option does not exist, is missing or has a value that its annotation excludes.

    Numbers must be finite. Options without an annotation, or with one that only Python code can fulfil, are not
    checked.

    Args:
        owner: The name of the factory for error messages, such as ``"the attack dlg"``.
        factory: The function or class that takes the options as keyword arguments.
        options: The options by name.
    """
    hints = _hints(factory)
    for option, value in options.items():
        if option not in hints:
            raise UnknownName(f"option of {owner}", option, hints)
        hint = hints[option].annotation
        if not _fits(value, hint):
            names = _names(hint)
            if names and isinstance(value, str):
                raise UnknownName(f"{option} of {owner} called", value, names)
            raise InvalidInput(f"{option} of {owner} must be {_words(hint)}, not {shown(value)}")
    missing = [name for name, one in hints.items() if one.default is one.empty and name not in options]
    if missing:
        raise InvalidInput(f"{owner} needs the option{'s' * (len(missing) > 1)} {', '.join(missing)}")


def _hints(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the options of a factory, with annotations that are types and not texts."""
    plain = factory.func if isinstance(factory, partial) else factory
    hints = get_type_hints(plain)
    return {
        name: one.replace(annotation=hints.get(name, one.empty))
        for name, one in inspect.signature(factory).parameters.items()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    }


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value fits an annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if _is_union(hint):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        return _fits_tuple(value, inner)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items()
        )
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        return _is_list(value) and all(_fits(one, inner[0]) for one in value)  # type: ignore[attr-defined]
    return _fits_type(value, hint)


def _fits_type(value: object, hint: Any) -> bool:
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return not isinstance(value, bool) and isinstance(value, Integral) and abs(int(value)) < LARGEST
    if hint is float:
        return not isinstance(value, bool) and isinstance(value, Real) and _is_finite(value)
    if hint is None or not isinstance(hint, type):
        return value is None if hint is None else True
    return hint is inspect.Parameter.empty or isinstance(value, hint)


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _fits_tuple(value: object, inner: tuple[Any, ...]) -> bool:
    if not _is_list(value):
        return False
    items: Sequence[object] = value  # type: ignore[assignment]
    if len(inner) == 2 and inner[1] is Ellipsis:
        return all(_fits(one, inner[0]) for one in items)
    return len(items) == len(inner) and all(_fits(one, hint) for one, hint in zip(items, inner, strict=True))


def _names(hint: Any) -> list[str]:
    """Return the texts among the values of a ``Literal``, also as a part of an optional annotation."""
    if get_origin(hint) is Literal:
        return [one for one in get_args(hint) if isinstance(one, str)]
    return [name for one in get_args(hint) for name in _names(one)] if _is_union(hint) else []


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _words(hint: Any) -> str:
    """Return words for the values that fit an annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if _is_union(hint):
        words = [_words(one) for one in inner if one is not type(None)]
        return " or ".join([*dict.fromkeys(words), *(["left out"] if type(None) in inner else [])])
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table whose values are each {_words(inner[1])}"
    if origin is tuple and Ellipsis not in inner:
        return f"a list of {len(inner)} values, each {_words(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list whose values are each {_words(inner[0])}"
    return _WORDS.get(hint, f"of type {getattr(hint, '__name__', hint)}")
