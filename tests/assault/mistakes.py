"""The mistakes of users, of which many are generated.

Every key of every table and every option of every factory gets values that it cannot take. The files
``wrong_configurations.txt`` and ``wrong_command_lines.txt`` hold further mistakes, one a line.
"""

import copy
import datetime
import inspect
import json
import math
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.assault import workplace

FOLDER = Path(__file__).parent
ENDLESS = (10**18, 10**30, 10**400)
DATE = datetime.date(2024, 1, 1)
NOT_TEXT: tuple[Any, ...] = (3, True, 1.5, math.nan, [], {}, DATE, datetime.time(7, 30))
WRONG_TEXT = ("", " ", "no such", "\0", "a\nb", "\x1b[31mred", "x" * 100_000, "../" * 50, "\u202egnp")
NOT_NUMBER: tuple[Any, ...] = ("1", "", True, False, [], [1], {}, DATE, math.nan, math.inf, -math.inf)
NOT_LIST: tuple[Any, ...] = (3, True, "labels", 1.5, {}, DATE)
WRONG_LIST: tuple[Any, ...] = ([3], [True], [[]], [{}], ["no such"], [""], ["\0"], [math.nan], ["x" * 10_000])
WRONG_TABLE: tuple[Any, ...] = (3, True, "x", [], [{}], 1.5, {"no such": 1}, {"": 1}, {"x" * 10_000: 1})
NOT_BOOL: tuple[Any, ...] = (0, 1, 3, "no", "true", 1.0, [], {})
#: Keys whose list may be empty.
EMPTY_IS_FINE = {("attacker", "granted"), ("attacker", "hidden")}

#: The tables of each command alone.
OF_COMMAND: dict[str, dict[str, Any]] = {
    "audit": {"audit": {"clients": 1, "attacks": [{"name": "inverting_gradients", "steps": 3}]}},
    "frontier": {
        "frontier": {
            "clients": 1, "federation": 2, "federation_samples": 5, "rounds": 1, "test": 10, "options": {"steps": 3},
        },
        "defence": [{"chain": []}],
    },
}  # fmt: skip
#: A right configuration for each command.
RIGHT: dict[str, dict[str, Any]] = {
    command: {
        "model": {"name": "mlp", "options": {"hidden": [4]}},
        "data": {"npz": "rows.npz"},
        "training": {"samples": 2, "batch_size": 1, "lr": 0.01},
        **tables,
    }
    for command, tables in OF_COMMAND.items()
}
#: Options without which a factory cannot be called.
NEEDED: dict[str, dict[str, Any]] = {
    "clipping": {"norm": 1.0}, "dpsgd": {"noise": 1.0}, "gaussian_noise": {"sigma": 0.1},
    "laplacian_noise": {"scale": 0.1}, "local_work": {"epochs": 2}, "quantisation": {"bits": 4},
    "random_pruning": {"probability": 0.5}, "top_k": {"keep": 0.5},
}  # fmt: skip
#: Factories in the user's file that work, or whose mistakes no command can see.
WORKING = (
    "small", "double", "half", "zeros", "forward_half", "forward_random", "data_good", "data_double", "data_half",
    "data_small_labels", "data_with_gradient", "loss_good", "loss_half",
)  # fmt: skip


def changed(command: str, *changes: tuple[str, str, Any]) -> dict[str, Any]:
    """Return a right configuration with other values of some keys. ``None`` removes a key.

    Another source of data takes the place of the right one, and another model has no options.

    Args:
        command: The command that reads the configuration.
        changes: The table, the key and the new value of each change. The table is empty for a whole table.
    """
    document = copy.deepcopy(RIGHT[command])
    named = {(table, key) for table, key, _ in changes}
    if (
        any(("data", source) in named for source in ("name", "images", "csv", "factory"))
        and ("data", "npz") not in named
    ):
        del document["data"]["npz"]
    if ("model", "name") in named:
        del document["model"]["options"]
    for table, key, value in changes:
        place = document.setdefault(table, {}) if table else document
        place.pop(key, None)
        if value is not None:
            place[key] = value
    return document


def configurations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the line, the command and the content of each wrong configuration in the file."""
    for line in (FOLDER / "wrong_configurations.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            command, _, rest = line.partition(": ")
            yield line, command, changed(command, *map(_change, rest.split("; ")))
    for name in factory_names():
        kind = name.partition("_")[0]
        table, key = {"data": ("data", "factory"), "loss": ("training", "loss")}.get(kind, ("model", "name"))
        if name not in WORKING:
            yield f"audit: own {name}", "audit", changed("audit", (table, key, f"own_factories:{name}"))


def _change(text: str) -> tuple[str, str, Any]:
    path, _, value = text.partition(" = ")
    table, _, key = path.removeprefix("-").replace('"', "").rpartition(".")
    return table, key, None if path.startswith("-") else tomllib.loads(f"value = {value}")["value"]


def factory_names() -> list[str]:
    """Return the public names in the user's file."""
    names = re.findall(r"^(?:async )?(?:def )?(\w+)(?:\(.*\):| = )", workplace.OWN, re.MULTILINE)
    return [name for name in names if not name.startswith("_") and name not in ("changed", "plain")]


def keys() -> Iterator[tuple[str, str, str, Any]]:
    """Yield the command, the table and the name of each key, with the types or the limits of its values."""
    from leakgauge.workflows.audit.plan import AUDIT
    from leakgauge.workflows.documents import TABLES
    from leakgauge.workflows.frontier_plan import FRONTIER

    for command, tables in (("audit", {**TABLES, "audit": AUDIT}), ("frontier", {"frontier": FRONTIER})):
        for table, kinds in tables.items():
            yield from ((command, table, key, valid) for key, valid in kinds.items())


def wrong_values(table: str, key: str, valid: Any) -> list[Any]:
    """Return values that a key cannot take.

    Args:
        table: The name of the table.
        key: The name of the key.
        valid: The types or the limits of its valid values.
    """
    if not isinstance(valid, tuple):
        outside = [valid.least - 1, *([0] if valid.least > 0 else []), valid.most * 10, *ENDLESS, -(10**30), 1e308]
        return [*NOT_NUMBER, *outside, *([1.5] if valid.whole else [])]
    if valid == (bool,):
        return list(NOT_BOOL)
    if dict in valid:
        return list(WRONG_TABLE)
    if float in valid:  # a number or a text
        return [*WRONG_TEXT, True, [], {}, DATE, math.nan, math.inf, -1, 0]
    if list in valid and str in valid:
        return [3, True, {}, 1.5, *WRONG_TEXT, [], *WRONG_LIST[1:], [-1]]
    if list in valid:
        return [*NOT_LIST, *WRONG_LIST, *([] if (table, key) in EMPTY_IS_FINE else [[]])]
    return [*NOT_TEXT, *WRONG_TEXT]


def factories() -> Iterator[tuple[str, str, Callable[..., Any], Callable[..., Any]]]:
    """Yield the kind and the name of each factory, the factory itself, and the function that calls it with options."""
    from leakgauge import data, models
    from leakgauge.attacks import registry
    from leakgauge.federation import defences
    from leakgauge.workflows.scenario import Scenario

    def loaded(key: str, path: str) -> Callable[..., Any]:
        return lambda **options: Scenario({}, {key: path, "options": {**_target(key), **options}}).dataset

    def defence(name: str) -> Callable[..., Any]:
        return lambda **options: defences.build(name, **{**NEEDED.get(name, {}), **options})

    for name, one in defences.DEFENCES.items():
        yield "defence", name, one, defence(name)
    for spec in registry.specs():
        yield "attack", spec.name, spec.factory, lambda name=spec.name, **options: registry.build(name, **options)
    for name, network in models.MODELS.items():
        yield "model", name, network, lambda name=name, **options: models.build(name, **options)
    for name, source in data.DATASETS.items():
        yield "dataset", name, source.loader, lambda name=name, **options: data.load(name, **options)
    sources: dict[str, Callable[..., Any]] = {"csv": data.from_csv, "npz": data.from_npz, "images": data.from_images}
    for (key, loader), path in zip(sources.items(), ("table.csv", "rows.npz", "pictures"), strict=True):
        yield "source", key, loader, loaded(key, path)


def _target(key: str) -> dict[str, Any]:
    return {"target": "label"} if key == "csv" else {}


def wrong_options(kind: str, factory: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a factory with values that their annotations exclude, and with negative numbers.

    Args:
        kind: The kind of the factory.
        factory: The factory.
    """
    for option, parameter in inspect.signature(factory).parameters.items():
        hint = str(parameter.annotation)
        first = kind == "source" and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if first or (kind == "dataset" and option in ("split", "folder", "download")):
            continue
        signed = kind == "dataset" or option in ("threshold", "statistics", "seed")
        values: tuple[Any, ...]
        if "Mapping" in hint:
            values = ("no such", "", 3, True, [], {"x": 1.0}, {"q_fc": "a"}, math.nan)
        elif any(word in hint for word in ("Sequence", "tuple", "Statistic")):
            values = ("8", True, {}, [True], [math.nan], [[]] if option != "mean" else [None])
            values += () if option == "missing_words" else (["a"],)
        elif "bool" in hint:
            values = ("no", 1, 0.0, [])
        elif "int" in hint:
            values = ("3", True, 1.5, math.nan, [2], 10**30, *(() if signed else (-3,)))
        elif "float" in hint:
            values = ("3", True, math.nan, math.inf, [2], {}, *(() if signed else (-1.0,)))
        else:
            values = ("no such", "", 3, True, [], {}, math.nan)
        yield from ((option, value) for value in values)


def command_lines() -> list[str]:
    """Return the wrong command lines in the file."""
    lines = (FOLDER / "wrong_command_lines.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def words_of(line: str) -> list[str]:
    """Return the words of a command line. ``\\xNN`` stands for a byte."""

    def byte(match: re.Match[str]) -> str:
        return bytes([int(match[1], 16)]).decode(errors="surrogateescape")

    return [re.sub(r"\\x([0-9a-f]{2})", byte, word) for word in shlex.split(line.replace("\\x", "\\\\x"))]


def toml(document: Mapping[str, Any]) -> str:
    """Return a configuration as TOML writes it, with every table in one line."""
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in document.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(one)}" for key, one in value.items()) + " }"
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)
