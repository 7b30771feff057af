"""Functions that convert results to JSON text and back. Results are plain values, dataclasses and enums of Leakgauge.

A dataclass is stored as its import path and its fields. Only classes of Leakgauge are stored and read, so that an
altered file cannot make Python import other code. Unlike plain JSON, the format keeps tuples, dictionary keys of any
type, infinity and NaN.

>>> decode(encode({"steps": (1, 2), 3: float("inf")}))
{'steps': (1, 2), 3: inf}
"""

from __future__ import annotations

import importlib
import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from leakgauge.core.errors import CorruptFile, InvalidInput

_PACKAGE = "leakgauge"
_DATACLASS, _ENUM, _TUPLE, _DICT = "$dataclass", "$enum", "$tuple", "$dict"


def encode(value: Any) -> str:
    """Convert a value to JSON text, which :func:`decode` can read."""
    return json.dumps(_to_plain(value))


def decode(text: str) -> Any:
    """Convert JSON text from :func:`encode` back to the value.

    Raises:
        CorruptFile: The text was altered, or it names a class outside Leakgauge.
    """
    try:
        return _from_plain(json.loads(text))
    except CorruptFile:
        raise
    except Exception as problem:  # a constructor may raise anything on altered fields
        raise CorruptFile(f"a stored result cannot be read ({type(problem).__name__}: {problem})") from problem


def _to_plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return {_ENUM: _path_of(type(value)), "name": value.name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        content = {field.name: _to_plain(getattr(value, field.name)) for field in fields(value) if field.init}
        return {_DATACLASS: _path_of(type(value)), "fields": content}
    if isinstance(value, tuple):
        return {_TUPLE: [_to_plain(item) for item in value]}
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, dict):
        return _dictionary_to_plain(value)
    raise InvalidInput(
        f"a result of type {type(value).__qualname__} cannot be cached; "
        "use numbers, texts, lists, dictionaries, and dataclasses of Leakgauge"
    )


def _dictionary_to_plain(value: dict[Any, Any]) -> dict[str, Any]:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _to_plain(item) for key, item in value.items()}
    return {_DICT: [[_to_plain(key), _to_plain(item)] for key, item in value.items()]}


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _DATACLASS in value:
        content = {name: _from_plain(item) for name, item in value["fields"].items()}
        return _class_at(value[_DATACLASS], dataclass=True)(**content)
    if _ENUM in value:
        return _class_at(value[_ENUM], dataclass=False)[value["name"]]
    if _TUPLE in value:
        return tuple(_from_plain(item) for item in value[_TUPLE])
    if _DICT in value:
        return {_from_plain(key): _from_plain(item) for key, item in value[_DICT]}
    return {key: _from_plain(item) for key, item in value.items()}


def _path_of(kind: type) -> str:
    """Return the import path of a class, or raise an error if Leakgauge does not define the class."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    if not _inside(kind.__module__) or "<locals>" in path:
        raise InvalidInput(
            f"a result of the class {kind.__module__}.{kind.__qualname__} cannot be cached; "
            "use plain values, or a dataclass that Leakgauge defines at the level of a module"
        )
    return path


def _class_at(path: str, *, dataclass: bool) -> Any:
    """Return the class with the given import path, or raise an error if it is not a class of Leakgauge."""
    module, _, name = path.partition(":")
    if not _inside(module):
        raise CorruptFile(f"a stored result names the class {path!r}, which is not Leakgauge's; the file was altered")
    kind: Any = importlib.import_module(module)
    for part in name.split("."):
        kind = getattr(kind, part)
    right = isinstance(kind, type) and (is_dataclass(kind) if dataclass else issubclass(kind, Enum))
    if not right or kind.__module__ != module:
        raise CorruptFile(f"a stored result names {path!r}, which is no class of a result; the file was altered")
    return kind


def _inside(module: str) -> bool:
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
