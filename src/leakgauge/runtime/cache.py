"""A cache of finished results on disk, with one SQLite file for numbers and texts, and safetensors files for tensors.

A result is stored under a key, which is a hash of the result's definition and of Leakgauge's source code. The
definition holds everything that the result depends on. After a change of the code, old results are not returned any
more. An entry is either complete or absent, even if a process is killed while it writes. Several processes may write to
the same folder.

Every entry has a checksum. An entry that was altered or damaged is removed, so that its result is computed again. A
database that is damaged, or that another program wrote, is refused and left as it is. In the folder, only files that
the cache wrote are replaced or removed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakgauge.core.container import SUFFIX, Location, create_file, output_folder, read_container, write_container
from leakgauge.core.errors import CorruptFile, FileError, FutureVersion
from leakgauge.runtime.codec import decode, encode
from leakgauge.runtime.digests import code_digest, source_digest
from leakgauge.runtime.engines import run_tasks
from leakgauge.runtime.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Cache", "Entry", "code_digest", "key_of", "run_cached", "source_digest"]

FILE, TENSORS = "cache.sqlite", "tensors"
KIND, VERSION = "result", 2
#: Columns by which the database of a cache is recognised, of whatever version.
COLUMNS = ("key", "definition", "document", "tensors")
#: The mark of Leakgauge in the header of its SQLite files, which are the letters "LGCG".
_APPLICATION = 0x4C474347
#: The seconds to wait for other processes that are writing.
_PATIENCE = 600.0
#: The age in seconds from which a file without a database row is a leftover. A younger file may still get its row.
_LEFTOVER = 3600.0
#: The number of bytes at the start of a tensor file that hold its mark and its key.
_HEADER = 4096
#: The names of the cache's tensor files, and of the temporary files that are later renamed to tensor files.
_TENSOR_FILE = re.compile(rf"([0-9a-f]{{32}}){re.escape(SUFFIX)}")
_TEMPORARY_FILE = re.compile(rf"\.[0-9a-f]{{32}}{re.escape(SUFFIX)}\..+")
_TABLE = """
CREATE TABLE results (
    key text primary key, definition text not null, document text not null, tensors integer not null,
    made real not null, checksum text not null
)
""".strip()


@dataclass(frozen=True, eq=False)
class Entry:
    """One result that is stored in the cache.

    Args:
        document: The numbers and texts of the result, as plain values and dataclasses of Leakgauge.
        tensors: A dictionary from names to the tensors of the result.
    """

    document: Any
    tensors: dict[str, Tensor]


class Cache:
    """A folder of finished results, so that the same result is not computed twice.

    Args:
        folder: The folder. It is created if it does not exist. Files that the cache did not write are not changed.
        samples: Whether clients' samples are stored, which are originals as well as reconstructions. If it is false,
            only figures and texts are stored, and samples that the folder holds from earlier runs are removed.

    Raises:
        FutureVersion: A newer version of Leakgauge wrote the cache.
        FileError: The folder cannot be written to, its database is damaged, or another program wrote the database.
    """

    def __init__(self, folder: Location, *, samples: bool = True) -> None:
        self.folder = output_folder(folder)
        self._stores_samples = samples
        self._tensors = output_folder(self.folder / TENSORS)
        with self._open(writing=True) as connection:
            self._prepare(connection)
            self._remove_leftovers(connection)
        if not samples:
            self.forget_samples()

    def __contains__(self, definition: Any) -> bool:
        with self._open() as connection:
            found = connection.execute("select 1 from results where key = ?", (key_of(definition),)).fetchone()
        return found is not None

    def __len__(self) -> int:
        with self._open() as connection:
            return int(connection.execute("select count(*) from results").fetchone()[0])

    def keys(self) -> list[str]:
        """Return the keys of all entries, from the oldest entry to the newest."""
        with self._open() as connection:
            return [key for (key,) in connection.execute("select key from results order by made, key")]

    def get(self, definition: Any) -> Entry | None:
        """Return the stored result with the given definition. A damaged entry is removed from the cache.

        Args:
            definition: Everything that the result depends on, as plain values.

        Returns:
            The entry, or ``None`` if the entry is missing or damaged.
        """
        key = key_of(definition)
        with self._open() as connection:
            row = self._row(connection, key)
        if row is None:
            return None
        try:
            return self._read(key, *row)
        except FileError:
            return self._get_or_remove(key)

    def _get_or_remove(self, key: str) -> Entry | None:
        """Return an entry while no other process writes, or remove it if it is damaged.

        Without the lock, a row and a file that do not fit may belong to two results, of which one replaced the other
        after the row was read.
        """
        with self._open(writing=True) as connection:
            row = self._row(connection, key)
            if row is not None:
                try:
                    return self._read(key, *row)
                except FileError:
                    self._delete(connection, key)
        return None

    @staticmethod
    def _row(connection: sqlite3.Connection, key: str) -> tuple[Any, ...] | None:
        """Return the document, the mark of tensors and the checksum of an entry."""
        query = "select document, tensors, checksum from results where key = ?"
        row: tuple[Any, ...] | None = connection.execute(query, (key,)).fetchone()
        return row

    def _read(self, key: str, document: Any, tensors: Any, checksum: Any) -> Entry:
        """Return the entry of a database row, or raise an error if the row or its file was altered."""
        if checksum != _checksum(key, document, tensors):
            raise CorruptFile(f"{self.folder / FILE}: the entry {key} does not match its checksum")
        if not tensors:
            return Entry(decode(document), {})
        described, contents = read_container(self._path(key), KIND, VERSION)
        if (described.get("key"), described.get("checksum")) != (key, checksum):
            raise CorruptFile(f"{self._path(key)}: belongs to another entry")
        return Entry(decode(document), contents)

    def put(
        self,
        definition: Any,
        document: Any,
        tensors: Mapping[str, Tensor] | None = None,
        samples: Collection[str] | None = None,
    ) -> None:
        """Store a result on disk. An earlier result with the same definition is replaced.

        Args:
            definition: Everything that the result depends on, as plain values.
            document: The numbers and texts of the result, as plain values and dataclasses of Leakgauge.
            tensors: A dictionary from names to the tensors of the result.
            samples: The names of the tensors that hold clients' samples. They can be removed later
                (:meth:`forget_samples`), and the rest of the result is kept. By default, all tensors are samples, and
                the result is of no use without them.
        """
        if not self._stores_samples and tensors:
            if samples is None:
                return
            tensors, samples = {name: value for name, value in tensors.items() if name not in samples}, ()
        key, text = key_of(definition), encode(document)
        checksum = _checksum(key, text, int(bool(tensors)))
        with self._open(writing=True) as connection:
            if tensors:
                held = None if samples is None else sorted(tensors.keys() & set(samples))
                described = {"key": key, "checksum": checksum, "samples": held}
                write_container(self._path(key), KIND, VERSION, described, tensors)
            else:
                self._remove(self._path(key))
            connection.execute(
                "insert or replace into results values (?, ?, ?, ?, ?, ?)",
                (key, _text(definition), text, bool(tensors), time.time(), checksum),
            )

    def forget(self, definition: Any) -> None:
        """Remove the stored result with the given definition, if there is one."""
        key = key_of(definition)
        with self._open(writing=True) as connection:
            self._delete(connection, key)

    def _delete(self, connection: sqlite3.Connection, key: str) -> None:
        connection.execute("delete from results where key = ?", (key,))
        self._remove(self._path(key))

    def forget_samples(self) -> list[Path]:
        """Remove all samples of clients from the cache, and return the files that were removed or rewritten.

        Results that are of use without the samples keep their other values. All other results with samples are removed,
        and so are files of interrupted runs.
        """
        with self._open(writing=True) as connection:
            changed = self._remove_leftovers(connection, age=0.0)
            for path in sorted(path for path in self._tensors.iterdir() if _TENSOR_FILE.fullmatch(path.name)):
                document, tensors = _contents_of(path)
                samples = document.get("samples")
                if samples is None:
                    connection.execute("delete from results where key = ?", (path.stem,))
                    path.unlink(missing_ok=True)
                elif samples:
                    rest = {name: value for name, value in tensors.items() if name not in samples}
                    write_container(path, KIND, VERSION, {**document, "samples": []}, rest)
                if samples != []:
                    changed.append(path)
        return changed

    def _path(self, key: str) -> Path:
        return self._tensors / f"{key}{SUFFIX}"

    @contextmanager
    def _open(self, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction. If ``writing`` is true, first wait for other writers."""
        path = self.folder / FILE
        try:
            create_file(path)  # SQLite itself would let others read the database and its journal
            with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection, connection:
                connection.text_factory = _decoded
                connection.execute("begin immediate" if writing else "begin")
                yield connection
        except (sqlite3.DatabaseError, OSError) as problem:
            raise FileError(
                f"{path}: this cache cannot be used ({problem}). Make room, or choose another folder"
            ) from problem

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check that the database is whole and ours. Set up an empty database, or one of an older version."""
        path = self.folder / FILE
        version, application, check = (
            connection.execute(f"pragma {name}").fetchone()[0]
            for name in ("user_version", "application_id", "quick_check(1)")
        )
        if check != "ok":
            raise FileError(f"{path}: this cache is damaged ({check}). Move the file away, or choose another folder")
        schema = dict(connection.execute("select name, sql from sqlite_master where name not like 'sqlite_%'"))
        first_version = version == 1 and not application and list(schema) == ["entries"]
        if not first_version and application != _APPLICATION and (schema or application or version):
            raise FileError(f"{path}: another program wrote this file. Choose another folder for the cache")
        if version > VERSION:
            raise FutureVersion(
                f"{path}: a newer Leakgauge wrote this cache, in version {version} of the format. "
                f"This Leakgauge reads version {VERSION}. Upgrade it, or choose another folder"
            )
        if first_version:
            connection.execute("drop table entries")  # its results belong to other code, and are never returned
        elif schema and schema != {"results": _TABLE}:
            raise FileError(
                f"{path}: the tables of this cache were altered. Move the file away, or choose another folder"
            )
        if first_version or not schema:
            connection.execute(_TABLE)
            connection.execute(f"pragma application_id = {_APPLICATION}")
            connection.execute(f"pragma user_version = {VERSION}")

    def _remove_leftovers(self, connection: sqlite3.Connection, age: float = _LEFTOVER) -> list[Path]:
        """Remove files that the cache wrote in interrupted runs, and return them. Files of others are kept.

        Args:
            connection: The open database.
            age: The age in seconds from which a file is removed.
        """
        removed = []
        known = {key for (key,) in connection.execute("select key from results")}
        for path in self._tensors.iterdir():
            tensor_file = _TENSOR_FILE.fullmatch(path.name)
            orphan = tensor_file is not None and tensor_file[1] not in known
            if (orphan or _TEMPORARY_FILE.fullmatch(path.name)) and _age(path) >= age and _is_ours(path):
                self._remove(path)
                removed.append(path)
        return removed

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            raise FileError(
                f"{path}: is in the way of the cache ({problem.strerror}). Move it away, or choose another folder"
            ) from problem


def key_of(definition: Any) -> str:
    """Return the key under which a result with the given definition is stored.

    The key is a hash of the definition and of Leakgauge's source code.
    """
    text = json.dumps([code_digest(), _text(definition)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_cached(
    tasks: Sequence[Task], definitions: Mapping[str, Any], folder: Location | None, **options: Any
) -> Iterator[tuple[Task, Any]]:
    """Yield each task with its result. Tasks with a cached result come first. The others are run, and then cached.

    Args:
        tasks: The tasks. Their results are plain values and dataclasses of Leakgauge.
        definitions: A dictionary from the name of each task to everything that its result depends on, as plain values.
        folder: The folder of the cache. If it is ``None``, nothing is cached.
        options: The options of :func:`leakgauge.runtime.run_tasks`.
    """
    if folder is None:
        yield from run_tasks(tasks, **options)
        return
    cache = Cache(folder)
    missing = []
    for task in tasks:
        entry = cache.get(definitions[task.name])
        if entry is None:
            missing.append(task)
        else:
            yield task, entry.document
    for task, result in run_tasks(missing, **options):
        cache.put(definitions[task.name], result)
        yield task, decode(encode(result))  # exactly what the cache will return


def _contents_of(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON object and the tensors of a file, which are empty if the file is damaged."""
    try:
        return read_container(path, KIND, VERSION)
    except FileError:
        return {}, {}


def _text(definition: Any) -> str:
    return json.dumps(definition, sort_keys=True)


def _checksum(key: str, document: Any, tensors: Any) -> str:
    """Return the checksum of an entry, which its database row and its tensor file hold."""
    return hashlib.sha256(json.dumps([key, repr(document), tensors]).encode()).hexdigest()


def _decoded(content: bytes) -> str:
    """Return a text of the database. A damaged text cannot have its checksum."""
    return content.decode(errors="replace")


def _is_ours(path: Path) -> bool:
    """Return whether the cache wrote a file, by the mark and the key in its header."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return False
    key = path.name.removeprefix(".").partition(".")[0]
    return f'"leakgauge":"{KIND}"'.encode() in header and key.encode() in header


def _age(path: Path) -> float:
    """Return the age of a file in seconds, or 0 if the file is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
