"""Finished work, kept so that it is never done twice: one SQLite file for what is known, safetensors for pictures.

A result is stored under the hash of everything that defines it. Its tensors are written first, whole or not at all, and
the row that names them in one transaction: what has a row is complete, and what was interrupted has none. Opening a
store removes what interrupted runs left behind.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from leakgauge.core.container import SUFFIX, Location, output_folder, read_container, write_container
from leakgauge.core.errors import CorruptFile, FileError, FutureVersion

FILE, TENSORS = "results.sqlite", "tensors"
KIND, VERSION = "result", 1
_TABLE = """
create table if not exists results (
    key text primary key, defined_by text not null, document text not null, tensors integer not null, made real not null
)
"""


class Store:
    """A folder of results, for one writer at a time."""

    def __init__(self, folder: Location) -> None:
        self.folder = output_folder(folder)
        self._tensors = output_folder(self.folder / TENSORS)
        with self._open() as connection:
            (version,) = connection.execute("pragma user_version").fetchone()
            if version > VERSION:
                raise FutureVersion(
                    f"{self.folder / FILE}: of version {version}; this Leakgauge reads {VERSION}: upgrade it"
                )
            connection.execute(_TABLE)
            connection.execute(f"pragma user_version = {VERSION}")
        self._remove_leftovers()

    def __contains__(self, key: str) -> bool:
        with self._open() as connection:
            return connection.execute("select 1 from results where key = ?", (key,)).fetchone() is not None

    def __len__(self) -> int:
        with self._open() as connection:
            return int(connection.execute("select count(*) from results").fetchone()[0])

    def keys(self) -> list[str]:
        """The keys of all results, in the order in which they were made."""
        with self._open() as connection:
            return [key for (key,) in connection.execute("select key from results order by made, key")]

    def put(self, key: str, defined_by: Any, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Store a result; one that is there already is replaced."""
        if tensors:
            write_container(self._path(key), KIND, VERSION, {"key": key}, tensors)
        texts = [json.dumps(one, sort_keys=True, allow_nan=False) for one in (defined_by, document)]
        with self._open() as connection:
            connection.execute(
                "insert or replace into results values (?, ?, ?, ?, ?)", (key, *texts, bool(tensors), time.time())
            )

    def get(self, key: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """A result's document and tensors; ``None`` if there is none, or a damaged one, which is forgotten."""
        with self._open() as connection:
            row = connection.execute("select document, tensors from results where key = ?", (key,)).fetchone()
        if row is None:
            return None
        try:
            tensors = read_container(self._path(key), KIND, VERSION)[1] if row[1] else {}
        except (CorruptFile, FileError):
            self.forget(key)
            return None
        return json.loads(row[0]), tensors

    def forget(self, key: str) -> None:
        """Remove a result."""
        with self._open() as connection:
            connection.execute("delete from results where key = ?", (key,))
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._tensors / f"{key}{SUFFIX}"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        path = self.folder / FILE
        try:
            with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
                yield connection
        except sqlite3.DatabaseError as problem:
            raise FileError(f"{path}: cannot be used ({problem}); move it away, or choose another folder") from problem

    def _remove_leftovers(self) -> None:
        """Remove temporary files, and tensors that no row names: of runs that were ended in the middle."""
        known = {self._path(key) for key in self.keys()}
        for path in self._tensors.iterdir():
            if path not in known:
                path.unlink(missing_ok=True)


def key_of(defined_by: Any) -> str:
    """The key of what is defined by plain values: numbers, texts, lists and tables of such."""
    text = json.dumps(defined_by, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
