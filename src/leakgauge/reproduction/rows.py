"""The benchmark rows. Each row is a TOML file that describes one setting of a paper's table.

The name of a row is the path of its file below the folder of the paper, such as ``table1/femnist-10x5x50``.

======================  ===========================================================================================
table                   keys
======================  ===========================================================================================
``[row]``               ``title``, ``kind`` (a name in :data:`leakgauge.reproduction.kinds.KINDS`), ``timed_against``
                        (the method whose time is compared with the time of the others), ``clients`` (the number of
                        attacked clients, by default 1), ``threshold`` (the PSNR in dB above which a picture counts as
                        recovered), ``measures`` (the metrics of a federation), ``reference`` (how a client's own model
                        is trained, ``"converged"`` or ``"recipe"``), ``references`` (the number of samples per client
                        on which models are compared), ``records`` (the number of records per client whose owner is
                        inferred), ``same_as`` (another row with the same setting, whose measurements hold here too)
set-up tables           the keys in :mod:`leakgauge.reproduction.setting`
``[short]``             ``steps`` and ``clients`` of a short run, and changes of set-up tables, such as
                        ``federation = { rounds = 200 }``
``[methods.NAME]``      ``attack``, ``options``, ``published`` (the paper's figures), ``compared_with`` (for a method
                        that is not in the paper, the method whose published figures it is compared with),
                        ``other_scale`` (the paper's figures on another scale than ours)
======================  ===========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import leakgauge
from leakgauge.core.errors import FileError, InvalidInput, UnknownName
from leakgauge.reproduction.setting import SETTING, Setting, read_setting
from leakgauge.workflows.documents import NUMBER, Keys, check_table, read_toml

ROW: Keys = {
    **dict.fromkeys(("title", "kind", "timed_against", "reference", "same_as"), (str,)),
    **dict.fromkeys(("clients", "references", "records"), (int,)),
    "threshold": NUMBER,
    "measures": (list,),
}
#: The keys of ``[row]`` about the measurement.
MEASURING = ("threshold", "measures", "reference", "references", "records")
SHORT: Keys = {"steps": (int,), "clients": (int,), **dict.fromkeys(SETTING, (dict,))}
METHOD: Keys = {
    **dict.fromkeys(("attack", "compared_with"), (str,)),
    **dict.fromkeys(("options", "published", "other_scale"), (dict,)),
}


@dataclass(frozen=True)
class Method:
    """One method of a benchmark row, which is an attack with its options and its published figures.

    Args:
        name: The name of the method within the benchmark row.
        attack: The name of the attack.
        options: The options of the attack.
        published: A dictionary from metrics to the values that the paper reports.
        compared_with: The name of another method of the row, for a method that is not in the paper. The results are
            compared with the published values of this other method.
        other_scale: A dictionary from metrics to values that the paper reports on another scale than ours. They are
            shown apart and not compared.
    """

    name: str
    attack: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    published: dict[str, float] = field(default_factory=dict)
    compared_with: str = ""
    other_scale: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Short:
    """The short setting of a benchmark row, which is small enough for a machine with two cores.

    Args:
        steps: The number of attack steps.
        clients: The number of attacked clients.
        changes: A dictionary from the names of set-up tables to the keys that change and their new values.
    """

    steps: int | None = None
    clients: int | None = None
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One benchmark row, which is one setting of a paper's table.

    Args:
        paper: The short name of the paper.
        name: The table and the row, such as ``table1/femnist-10x5x50``.
        title: A sentence about the row.
        kind: The kind of measurement, a name in :data:`leakgauge.reproduction.kinds.KINDS`.
        setting: The data, the network, the training and the defences.
        methods: A dictionary from the name of each method to the method.
        folder: The folder of the paper, which holds ``results.csv``.
        timed_against: The name of the method whose time is compared with the time of the others.
        clients: The number of attacked clients.
        measuring: The values of the other keys of ``[row]``, which are threshold, measures, reference, references and
            records.
        short: The short setting.
        same_as: The name of another row with the same setting, whose measurements hold for this row too. Empty if there
            is none.
    """

    paper: str
    name: str
    title: str
    kind: str
    setting: Setting
    methods: dict[str, Method]
    folder: Path
    timed_against: str = ""
    clients: int = 1
    measuring: dict[str, Any] = field(default_factory=dict)
    short: Short = field(default_factory=Short)
    same_as: str = ""

    @property
    def table(self) -> str:
        """The name of the table or figure that the row belongs to."""
        return self.name.partition("/")[0]

    def method(self, name: str) -> Method:
        """Return the method with the given name."""
        if name not in self.methods:
            raise UnknownName(f"method of {self.paper} {self.name}", name, self.methods)
        return self.methods[name]

    def published(self, method: Method) -> dict[str, float]:
        """Return a dictionary from metrics to the published values that a method is compared with."""
        return self.methods[method.compared_with].published if method.compared_with else method.published

    def shortened(self) -> Row:
        """Return a copy of the benchmark row with its short setting."""
        return replace(self, setting=self.setting.changed(self.short.changes))


def benchmarks_folder() -> Path:
    """Return the folder that holds the benchmark rows of all papers.

    If the environment variable ``LEAKGAUGE_BENCHMARKS`` is set, return the folder that the variable names. Otherwise,
    return the folder in this checkout or in the installed package.
    """
    chosen = os.environ.get("LEAKGAUGE_BENCHMARKS")
    package = Path(leakgauge.__file__).parent
    places = [Path(chosen)] if chosen else [package.parent.parent / "benchmarks", package / "benchmarks"]
    for place in places:
        if place.is_dir():
            return place
    raise FileError(f"No benchmarks were found in {' or '.join(map(str, places))}. Set LEAKGAUGE_BENCHMARKS.")


def papers() -> list[str]:
    """Return the names of the papers that have benchmark rows."""
    return sorted(path.name for path in benchmarks_folder().iterdir() if any(path.glob("*/*.toml")))


def find_rows(paper: str, pattern: str | None = None) -> list[Row]:
    """Return the benchmark rows of a paper.

    Args:
        paper: The short name of the paper.
        pattern: The name of a row (``table1/mnist``) or of a table (``table1``), or a pattern (``table?/mnist``). The
            default is all rows.
    """
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
    return [_read_row(folder, name) for name in chosen]


def _read_row(folder: Path, name: str) -> Row:
    path = folder / f"{name}.toml"
    document, where = read_toml(path), str(path)
    known = ("row", "short", "methods", "defence", *SETTING)
    for table in document:
        if table not in known:
            raise UnknownName(f"table in {where} called", table, known)
    head = document.get("row", {})
    check_table(head, ROW, f"{where}: [row]")
    for key in ("title", "kind"):
        if key not in head:
            raise InvalidInput(f"{where}: [row] needs a {key}")
    methods = _read_methods(document.get("methods", {}), where)
    timed_against = head.get("timed_against", "")
    if timed_against and timed_against not in methods:
        raise UnknownName(f"method for {where}: [row] timed_against", timed_against, methods)
    row = Row(
        paper=folder.name,
        name=name,
        title=head["title"],
        kind=head["kind"],
        setting=read_setting(document, where),
        methods=methods,
        folder=folder,
        timed_against=timed_against,
        clients=head.get("clients", 1),
        measuring={key: head[key] for key in MEASURING if key in head},
        short=_read_short(document.get("short", {}), where),
        same_as=head.get("same_as", ""),
    )
    if row.same_as:
        _check_same(row, _read_row(folder, row.same_as), where)
    return row


def _check_same(row: Row, other: Row, where: str) -> None:
    """Raise an error if a row is not measured by another one, because they differ in more than their measures."""
    differing = [name for name in ("kind", "setting", "clients", "short") if getattr(row, name) != getattr(other, name)]
    differing += [
        name for name in MEASURING if name != "measures" and row.measuring.get(name) != other.measuring.get(name)
    ]
    if not set(row.measuring.get("measures", ())) <= set(other.measuring.get("measures", ())):
        differing.append("measures")
    for name, method in row.methods.items():
        same = other.methods.get(name)
        if same is None or (method.attack, method.options) != (same.attack, same.options):
            differing.append(f"[methods.{name}]")
    if differing:
        raise InvalidInput(f"{where}: [row] same_as: {other.name} differs in {', '.join(differing)}. Remove same_as.")


def _read_methods(tables: object, where: str) -> dict[str, Method]:
    if not isinstance(tables, dict) or not tables:
        raise InvalidInput(f"{where}: a row needs at least one method. Add [methods.NAME].")
    for name, table in tables.items():
        check_table(table, METHOD, f"{where}: [methods.{name}]")
        other = table.get("compared_with", "")
        if other and other not in tables:
            raise UnknownName(f"method for {where}: [methods.{name}] compared_with", other, tables)
    return {name: Method(name, **table) for name, table in tables.items()}


def _read_short(table: Mapping[str, Any], where: str) -> Short:
    check_table(table, SHORT, f"{where}: [short]")
    changes = {name: table[name] for name in SETTING if name in table}
    for name, change in changes.items():
        check_table(change, SETTING[name], f"{where}: [short] {name}")
    return Short(table.get("steps"), table.get("clients"), changes)
