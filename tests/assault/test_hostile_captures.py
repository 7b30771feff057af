"""Captures made by hand to do harm, each with the right signature. Each is refused in words, or attacked in peace."""

import json
import os
import socket
import struct
import subprocess
import sys

import pytest

from leakgauge.core.container import MAX_HEADER
from tests.assault.hostile import CAPTURES
from tests.assault.laboratory import examine
from tests.assault.mutators import opened
from tests.assault.outcomes import assert_refused, run
from tests.assault.test_mutated_captures import make_bases

#: Files that are no safetensors files at all.
RAW = {
    "an empty file": b"",
    "seven bytes": b"\0" * 7,
    "a header of 1 TiB": struct.pack("<Q", 2**40) + b"{}",
    "a header of 2**64 bytes": b"\xff" * 64,
    "a header just beyond the limit": struct.pack("<Q", MAX_HEADER + 1) + b" " * (MAX_HEADER + 1),
    "a header of brackets": struct.pack("<Q", 2**20) + b"[" * 2**20,
    "a header of zeros": struct.pack("<Q", 1000) + b"\0" * 1000,
    "a pickle": b"\x80\x04\x95 \0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a zip": b"PK\x03\x04" + b"\0" * 100,
    "a text": b"leakgauge " * 1000,
}


def fifo(path):
    os.mkfifo(path)


def listening(path):
    """Leave a socket behind. Its path may have about 100 characters, so it is bound from its own folder."""
    code = "import socket, sys, os; os.chdir(sys.argv[1]); socket.socket(socket.AF_UNIX).bind(sys.argv[2])"
    assert hasattr(socket, "AF_UNIX")
    subprocess.run([sys.executable, "-c", code, path.parent, path.name], check=True)


def sparse(path):
    path.touch()
    os.truncate(path, 2**40)


#: Paths that hold no capture, most of which are no regular files.
PATHS = {
    "a pipe": fifo,
    "a socket": listening,
    "a folder": lambda path: path.mkdir(),
    "a device of zeros": lambda path: path.symlink_to("/dev/zero"),
    "a device of noise": lambda path: path.symlink_to("/dev/urandom"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a link to passwords": lambda path: path.symlink_to("/etc/passwd"),
    "memory of the process": lambda path: path.symlink_to("/proc/self/mem"),
    "a sparse file of 1 TiB": sparse,
}
NAMES = [*CAPTURES, *RAW, *PATHS]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Every hostile file by its name. The captures come from one of a client's weights, with nothing granted."""
    folder = tmp_path_factory.mktemp("hostile")
    base = next(path for path in make_bases(tmp_path_factory.mktemp("bases")) if path.stem == "nothing")
    document, tensors = opened(base.read_bytes())
    files = {}
    for number, name in enumerate(NAMES):
        files[name] = path = folder / f"{number:03d}.safetensors"
        if name in CAPTURES:
            path.write_bytes(CAPTURES[name][0](json.loads(json.dumps(document)), dict(tensors)))
        elif name in RAW:
            path.write_bytes(RAW[name])
        else:
            PATHS[name](path)
    return files, base


def is_right(name, outcome):
    """Return whether a case ended as expected."""
    if name not in CAPTURES:
        return outcome.kind == "refused"
    _, expected, words = CAPTURES[name]
    return outcome.kind in ((expected,) if expected else ("refused", "attacked")) and words in outcome.text


def check(hostile, record_property, few=()):
    """Attack every hostile capture in one process, which the tests of several workers could not share."""
    files, _ = hostile
    report = examine({"files": {name: str(path) for name, path in files.items()}, "few": few}, NAMES)
    record_property("assault", f"captures made by hand, {report}")
    assert len(CAPTURES) >= 70
    assert report.results.keys() == set(NAMES)
    assert {name: one for name, one in report.results.items() if not is_right(name, one)} == {}
    assert report.peak < 1500
    assert not any(path.name == "executed" for path in files["a text"].parent.rglob("*"))


def test_hostile_captures(hostile, record_property):
    """A capture that attacks accept meets three of them, in turn."""
    check(hostile, record_property, [name for name, (_, _, words) in CAPTURES.items() if not words])


@pytest.mark.long
def test_hostile_captures_and_every_attack(hostile, record_property):
    check(hostile, record_property)


@pytest.mark.long
def test_a_folder_of_all_of_them_ends_in_words_and_the_intact_capture_is_attacked(hostile, tmp_path):
    files, base = hostile
    folder = next(iter(files.values())).parent
    words = ("attack", folder, "--option", "steps=1", "--output", tmp_path / "out", "--engine", "in-process")
    ended = run(*words, "--client", "nobody", folder=tmp_path)
    assert_refused(ended)
    (folder / "zzz.safetensors").write_bytes(base.read_bytes())
    ended = run(*words, folder=tmp_path)
    assert ended.code == 2, ended.errors
    assert "unexpected" not in ended.output + ended.errors
    assert "\x1b" not in ended.output + ended.errors
    assert (tmp_path / "out" / "zzz.reconstruction.safetensors").exists()
    (folder / "zzz.safetensors").unlink()
