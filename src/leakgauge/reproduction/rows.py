"""The rows of the benchmarks: one TOML file each, named by where it lies (``table1/femnist-10x5x50``)."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import leakgauge
from leakgauge.core.errors import CorruptFile, FileError, UnknownName


@dataclass(frozen=True)
class Method:
    """One way of doing a row: an attack with its options, and what the paper reports for it."""

    name: str
    attack: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    published: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One row of a paper's table. ``reference`` names a method whose time the others' is compared with, ``short`` the
    ``steps`` and ``clients``, and what of the ``setting``, are other in one that two cores finish.
    """

    paper: str
    name: str
    title: str
    kind: str
    setting: dict[str, Any]
    methods: dict[str, Method]
    folder: Path
    reference: str = ""
    short: dict[str, Any] = field(default_factory=dict)

    def method(self, name: str) -> Method:
        """A method by name."""
        if name not in self.methods:
            raise UnknownName(f"method of {self.paper} {self.name}", name, self.methods)
        return self.methods[name]


def benchmarks_folder() -> Path:
    """Where the benchmarks lie: ``LEAKGAUGE_BENCHMARKS``, this checkout, or inside the installed package."""
    chosen = os.environ.get("LEAKGAUGE_BENCHMARKS")
    package = Path(leakgauge.__file__).parent
    places = [Path(chosen)] if chosen else [package.parent.parent / "benchmarks", package / "benchmarks"]
    for place in places:
        if place.is_dir():
            return place
    raise FileError(f"there are no benchmarks in {' or '.join(map(str, places))}; set LEAKGAUGE_BENCHMARKS")


def papers() -> list[str]:
    """The papers that have rows."""
    return sorted(path.name for path in benchmarks_folder().iterdir() if any(path.glob("*/*.toml")))


def find_rows(paper: str, pattern: str | None = None) -> list[Row]:
    """The rows of a paper, or those whose name is ``pattern``, matches it (``table?/mnist``) or begins with it."""
    if paper not in papers():
        raise UnknownName("benchmark", paper, papers())
    folder = benchmarks_folder() / paper
    names = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.toml"))
    chosen = [
        name
        for name in names
        if pattern is None or fnmatchcase(name, pattern) or name.startswith(f"{pattern.rstrip('/')}/")
    ]
    if not chosen:
        raise UnknownName(f"row of {paper}", pattern, names)
    return [_read(paper, folder, name) for name in chosen]


def _read(paper: str, folder: Path, name: str) -> Row:
    path = folder / f"{name}.toml"
    try:
        document = tomllib.loads(path.read_text())
        methods = {key: Method(key, **value) for key, value in document["methods"].items()}
        reference = document.get("reference", "")
        if reference and reference not in methods:
            raise KeyError(reference)
        head = paper, name, document["title"], document["kind"], document["setting"]
        return Row(*head, methods, folder, reference, document.get("short", {}))
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as problem:
        raise CorruptFile(f"{path}: not a benchmark row ({problem!r})") from problem
