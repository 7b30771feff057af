"""Damaged stores of results. Every result comes back as it was, is computed again, or is refused in one sentence."""

import random
import resource
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from leakgauge.core.container import read_container, write_container
from leakgauge.core.errors import FileError
from leakgauge.core.measure import Measure
from leakgauge.runtime.cache import FILE, TENSORS, VERSION, Cache, key_of

#: The stored results, by definition.
RESULTS = {
    name: ({"measure": Measure("psnr", float(number)), "number": number}, tensors)
    for number, (name, tensors) in enumerate(
        [("plain", {}), ("first", {"x": torch.arange(500.0)}), ("second", {"x": torch.ones(500)}), ("other", {})]
    )
}
#: The files of another program in the folder of tensors, which nothing may change.
FOREIGN = {"0123456789abcdef" * 2 + ".safetensors": b"weights of mine", "notes.txt": b"notes"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undamaged store."""
    folder = tmp_path_factory.mktemp("whole")
    cache = Cache(folder)
    for name, (document, tensors) in RESULTS.items():
        cache.put(name, document, tensors)
    for name, content in FOREIGN.items():
        (folder / TENSORS / name).write_bytes(content)
    return folder


def path_of(folder, name):
    return folder / TENSORS / f"{key_of(name)}.safetensors"


def same(entry, name):
    document, tensors = RESULTS[name]
    assert repr(entry.document) == repr(document)
    assert entry.tensors.keys() == tensors.keys()
    return all(torch.equal(entry.tensors[key], value) for key, value in tensors.items())


DAMAGES: dict[str, Callable[[Path], None]] = {}


def damage(*names):
    """Register a function that damages a folder. It gets one of the names as its second argument, if there are any."""

    def register(function):
        title = function.__name__.replace("_", " ")
        if names:
            DAMAGES.update({f"{title}: {name}": lambda folder, name=name: function(folder, name) for name in names})
        else:
            DAMAGES[title] = function
        return function

    return register


# The database as a file


@damage(0, 1, 15, 16, 40, 99, 100, 512, 4095, 4096, 4097, 6000, 8191, -1)
def cut_off(folder, size):
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:size])


@damage(0, 15, 16, 18, 19, 20, 21, 24, 28, 31, 32, 36, 44, 47, 52, 56, 60, 62, 63, 68, 71, 92, 96, 100, 101, 103, 105)
def one_wrong_byte_of_the_header(folder, place):
    content = bytearray((folder / FILE).read_bytes())
    content[place] ^= 0x5A
    (folder / FILE).write_bytes(content)


@damage(*range(12))
def wrong_bytes_anywhere(folder, seed):
    chance, content = random.Random(seed), bytearray((folder / FILE).read_bytes())
    for _ in range(20):
        content[chance.randrange(len(content))] = chance.randrange(256)
    (folder / FILE).write_bytes(content)


@damage(b"\0" * 20000, b"this is a text\n" * 500, b"PK\x03\x04" + b"zip" * 999, b"{}", b"SQLite format 3\0")
def another_file(folder, content):
    (folder / FILE).write_bytes(content)


@damage()
def a_folder_as_database(folder):
    (folder / FILE).unlink()
    (folder / FILE).mkdir()


@damage()
def a_link_to_nowhere_as_database(folder):
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(folder / "nowhere" / "file")


@damage("journal", "wal", "shm")
def a_file_beside_the_database(folder, suffix):
    (folder / f"{FILE}-{suffix}").write_bytes(b"garbage" * 1000)


@damage("journal", "wal")
def a_folder_beside_the_database(folder, suffix):
    (folder / f"{FILE}-{suffix}").mkdir()


# The database as tables


@damage(
    "drop table results",
    "alter table results rename to others",
    "alter table results rename column document to text",
    "alter table results add column more text",
    "create table more (x)",
    "create view more as select * from results",
    "create trigger more after insert on results begin delete from results; end",
    "pragma user_version = 99",
    "pragma user_version = -1",
    "pragma application_id = 7",
    "pragma journal_mode = wal",
    "delete from results",
    "update results set document = replace(document, '1.0', '9.0')",
    "update results set document = ''",
    "update results set document = 7",
    "update results set document = x'ff00'",
    "update results set document = cast(x'ff00' as text)",
    "update results set tensors = 1 - tensors",
    "update results set tensors = 'yes'",
    "update results set checksum = ''",
    "update results set checksum = 1",
    "update results set checksum = (select min(checksum) from results)",
    "update results set made = 'never'",
    "update results set document = (select max(document) from results)",
    "update results set key = 'x' || key",
)
def changed_by_sql(folder, statement):
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as connection:
        connection.execute(statement)


@damage()
def two_rows_exchanged(folder):
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as connection:
        for old, new in (("first", "x"), ("second", "first"), ("x", "second")):
            keys = [name if name == "x" else key_of(name) for name in (new, old)]
            connection.execute("update results set key = ? where key = ?", keys)


# The files of tensors


@damage(b"", b"garbage", b"\xff" * 64)
def another_file_of_tensors(folder, content):
    path_of(folder, "first").write_bytes(content)


@damage(1, 8, 100, -1)
def tensors_cut_off(folder, size):
    path = path_of(folder, "first")
    path.write_bytes(path.read_bytes()[:size])


@damage(0, 9, 60, 200, 500, -1)
def one_wrong_byte_of_tensors(folder, place):
    content = bytearray(path_of(folder, "first").read_bytes())
    content[place] ^= 1
    path_of(folder, "first").write_bytes(content)


@damage()
def no_tensors(folder):
    path_of(folder, "first").unlink()


@damage()
def tensors_of_another_entry(folder):
    shutil.copy(path_of(folder, "second"), path_of(folder, "first"))


@damage()
def tensors_with_another_checksum(folder):
    path = path_of(folder, "first")
    document, _ = read_container(path, "result", VERSION)
    write_container(path, "result", VERSION, {**document, "checksum": "0"}, {"x": torch.zeros(3)})


@damage()
def tensors_of_another_kind(folder):
    write_container(path_of(folder, "first"), "observation", VERSION, {}, {"x": torch.zeros(3)})


@damage()
def a_folder_as_tensors(folder):
    path_of(folder, "first").unlink()
    path_of(folder, "first").mkdir()


@damage()
def a_link_to_nowhere_as_tensors(folder):
    path_of(folder, "first").unlink()
    path_of(folder, "first").symlink_to(folder / "nowhere")


@damage("none", "file", "link")
def no_folder_of_tensors(folder, instead):
    (folder / TENSORS).rename(folder / "elsewhere")
    if instead == "file":
        (folder / TENSORS).write_text("")
    elif instead == "link":
        (folder / TENSORS).symlink_to(folder / "nowhere")


def use(folder):
    """Read every result, and compute the missing ones again. Return the words of a refusal."""
    try:
        cache = Cache(folder)
        for stored, (document, tensors) in RESULTS.items():
            entry = cache.get(stored)
            assert entry is None or same(entry, stored)
            if entry is None:
                cache.put(stored, document, tensors)
            assert same(cache.get(stored), stored)
    except FileError as problem:
        return str(problem)
    return None


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_store_gives_the_same_results_none_or_a_refusal(whole, tmp_path, name):
    folder = tmp_path / "store"
    shutil.copytree(whole, folder)
    DAMAGES[name](folder)
    refusal = use(folder)
    assert refusal is None or (str(folder) in refusal and len(refusal) < 500)
    for place in (folder / TENSORS, folder / "elsewhere"):
        if place.is_dir() and list(place.glob("notes.txt")):
            assert {file: (place / file).read_bytes() for file in FOREIGN} == FOREIGN


def test_there_are_at_least_sixty_damages():
    assert len(DAMAGES) >= 60


def test_a_full_disk_loses_no_earlier_result(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "store")
    cache = Cache(tmp_path / "store")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 3000, 12288):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(FileError):
                cache.put("new", {"text": "x" * 50000}, {"x": torch.zeros(10000)})
            with pytest.raises(FileError):
                cache.put("new", {"text": "x" * 50000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert cache.get("new") is None
        for stored in RESULTS:
            assert same(cache.get(stored), stored)


def test_the_database_of_another_program_is_left_as_it_is(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("create table mine (x)")
        connection.commit()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(FileError, match="another program wrote this file"):
        Cache(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_store_of_the_first_version_is_emptied(tmp_path):
    """Its results belong to other code, so no key of this version can be one of them."""
    columns = "key text primary key, definition text, document text, tensors integer, made real"
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute(f"create table entries ({columns})")
        connection.execute("pragma user_version = 1")
        connection.commit()
    cache = Cache(tmp_path)
    cache.put("a", 1)
    assert Cache(tmp_path).get("a").document == 1
