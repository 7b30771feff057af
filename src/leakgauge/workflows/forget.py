"""The removal of clients' samples from a folder of results. Figures and texts are kept.

Only files that Leakgauge wrote are removed. They are recognised by their content and not by their names, and symbolic
links are not followed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from leakgauge.attacks import reconstruction_file
from leakgauge.core.container import SUFFIX, Location, kind_of
from leakgauge.core.errors import FileError, InvalidInput
from leakgauge.runtime import cache
from leakgauge.runtime.cache import Cache

#: The number of bytes at the beginning of a file by which it is recognised.
_START = 4096
#: The beginnings of the JSON files that commands write.
_JSON = (b'{\n "leakgauge": "', b'{"leakgauge": "')


@dataclass(frozen=True)
class Forgotten:
    """The files that held samples of clients.

    Args:
        removed: The files that were removed, or rewritten without the samples.
        left: Pages, pictures and tensor files that were left, because Leakgauge did not write them.
    """

    removed: tuple[Path, ...]
    left: tuple[Path, ...]


def forget(folder: Location) -> Forgotten:
    """Remove all samples of clients that Leakgauge stored in a folder.

    The command ``leakgauge forget`` calls this function.

    Pages and pictures that show samples are removed, and so are reconstruction files, and the samples and the rebuilt
    models in the cache. Figures are kept. Captures are kept too, because they are input and not results.

    Args:
        folder: The output folder of a command, or a cache.

    Raises:
        InvalidInput: Leakgauge wrote no results to this folder.
        FileError: The cache cannot be used, or a newer version of Leakgauge wrote it.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InvalidInput(f"{place}: there is no such folder")
    stores = [one for one in (place, place / "cache") if _has_database(one) or _results(one)]
    if not stores and not any(_content(path) for path in _files(place)):
        raise InvalidInput(
            f"{place}: holds no results of Leakgauge, so nothing was removed. Name a folder that a command wrote to "
            "(--output), or a cache"
        )
    removed = [path for one in stores for path in _forget_results(one)] + forget_files(place)
    left = [path for path in _files(place) if path.suffix in (".html", ".png", SUFFIX) and _content(path) is None]
    left += [path for one in stores for path in _files(one / cache.TENSORS) if kind_of(path) != cache.KIND]
    return Forgotten(tuple(removed), tuple(left))


def forget_files(folder: Path) -> list[Path]:
    """Remove the reconstruction files, pictures and pages in a folder that show samples, and return them.

    Args:
        folder: The folder. Nothing happens if it does not exist.
    """
    return _remove([path for path in _files(folder) if _content(path) == "samples"])


def _remove(paths: list[Path]) -> list[Path]:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            raise FileError(f"{path}: holds samples and cannot be removed ({problem.strerror or problem})") from problem
    return paths


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        yield from sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())


def _content(path: Path) -> str | None:
    """Return ``"samples"`` or ``"figures"`` for a file of Leakgauge, and ``None`` for any other file."""
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError:
        return None
    if start.startswith(b"\x89PNG"):
        return "samples" if b"tEXtleakgauge\0samples" in start else None
    if b"<title>Leakgauge " in start:
        return "figures" if b'<meta name="leakgauge" content="no samples">' in start else "samples"
    if start.startswith(_JSON):
        return "figures"
    return "samples" if kind_of(path) == reconstruction_file.KIND else None


def _forget_results(folder: Path) -> list[Path]:
    """Remove the samples from a cache. If its database is lost or damaged, remove all of its tensor files."""
    if _has_database(folder):
        return Cache(folder).forget_samples()
    return _remove(_results(folder))


def _results(folder: Path) -> list[Path]:
    return [path for path in _files(folder / cache.TENSORS) if kind_of(path) == cache.KIND]


def _has_database(folder: Path) -> bool:
    """Return whether a folder holds the database of a cache. The database is not changed."""
    path = folder / cache.FILE
    if folder.is_symlink() or path.is_symlink() or not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            tables = connection.execute("select sql from sqlite_master where type = 'table'").fetchall()
    except sqlite3.DatabaseError:
        return False
    return any(all(column in sql for column in cache.COLUMNS) for (sql,) in tables)
