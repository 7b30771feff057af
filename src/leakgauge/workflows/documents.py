"""The TOML documents of all commands, with the keys of their tables and the values that each key can take."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakgauge.core.container import Location
from leakgauge.core.errors import FileError, InvalidInput, UnknownName, shown
from leakgauge.core.files import regular_file
from leakgauge.core.limits import MOST_ROUNDS, RECIPE, Limit

#: The keys of a table, each with the valid types of its value, or with the limits of a number.
Keys = Mapping[str, tuple[type, ...] | Limit]
NUMBER = (int, float)
#: The limits of numbers of samples, of clients and of rounds, and of a PSNR in dB.
SAMPLES, CLIENTS = RECIPE["samples"], Limit(1, 1_000_000, whole=True)
ROUNDS = Limit(1, MOST_ROUNDS, whole=True)
DECIBELS = Limit(0, 200)
TABLES: dict[str, Keys] = {
    "model": {
        "name": (str,), "options": (dict,), "trained_rounds": Limit(0, MOST_ROUNDS, whole=True),
        "trained_samples": SAMPLES,
    },
    "data": {**dict.fromkeys(("name", "images", "npz", "csv", "factory"), (str,)), "options": (dict,)},
    "training": {
        **RECIPE, "sends": (str,), "mode": (str,), "loss": (str,), "optimiser": (str,), "nesterov": (bool,),
        "betas": (list,), "schedule": (str, list), "epochs": ROUNDS,
    },
    "attacker": {"granted": (list,), "hidden": (list,), "knows_defence": (bool,), "public": (int, str)},
}  # fmt: skip
DEFENCE: Keys = {"title": (str,), "chain": (list,)}
#: The largest number of characters of a text, such as a title or a path.
LONGEST_TEXT = 4096
#: The largest size of a document in bytes.
LARGEST = 10 * 2**20


def check_table(table: object, keys: Keys, where: str) -> None:
    """Raise an error if a table has unknown keys, or values of the wrong type or outside their limits.

    Numbers must be finite, and texts must be printable and not empty.

    Args:
        table: The value to check.
        keys: The valid keys with the types or the limits of their values.
        where: The place of the table for error messages.
    """
    if not isinstance(table, dict):
        raise InvalidInput(f"{where} must be a table, not {shown(table)}")
    for key, value in table.items():
        if key not in keys:
            raise UnknownName(f"key in {where} called", key, keys)
        _check_value(value, keys[key], f"{where} {key}")


def _check_value(value: object, kinds: tuple[type, ...] | Limit, where: str) -> None:
    if isinstance(kinds, Limit):
        kinds.checked(where, value)
        return
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidInput(f"{where} must be of type {names}, not {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{where} must be a finite number, not {value}")
    if isinstance(value, str):
        check_printable(value, where)


def check_printable(text: str, where: str) -> None:
    """Raise an error if a text is empty or very long, or holds control characters.

    Args:
        text: The text.
        where: The place of the text for error messages.
    """
    if not text.strip() or not text.isprintable() or len(text) > LONGEST_TEXT:
        raise InvalidInput(
            f"{where} must be a text of 1 to {LONGEST_TEXT:,} printable characters, not {shown(text)}. "
            "Correct it, or leave it out"
        )


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, and return its content."""
    try:
        content = regular_file(path, LARGEST).read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise FileError(f"{path}: cannot be read ({problem})") from problem
    try:
        return tomllib.loads(content)
    except (tomllib.TOMLDecodeError, ValueError) as problem:
        raise InvalidInput(f"{path}: not a TOML file ({problem})") from problem
    except RecursionError as problem:
        raise InvalidInput(f"{path}: its lists or tables are nested too deeply. Write a few levels") from problem


def read_config(config: Location | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the content and the name of a configuration, which is a TOML file or a dictionary."""
    if isinstance(config, Mapping):
        return config, "the configuration"
    return read_toml(Path(config)), str(config)
