"""Containers: atomic writing, integrity checks, and hostile files."""

import errno
import json
import os
import stat
import struct
import subprocess
import sys
import tempfile
import time

import pytest
import safetensors.torch
import torch

from leakgauge.core import container
from leakgauge.core.container import create_file, output_folder, read_container, write_atomically, write_container
from leakgauge.core.errors import CorruptFile, FileError, FutureVersion

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "empty": torch.zeros(0, 2)}
DOCUMENT = {"name": "Ada", "numbers": [1, 2.5, None]}


@pytest.fixture
def file(tmp_path):
    return write_container(tmp_path / "x.safetensors", "thing", 3, DOCUMENT, TENSORS)


def raw_file(path, header, body=b""):
    """Write a safetensors file with any header, well-formed or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def with_metadata(file, **changes):
    """Change the metadata of a file, but not the checksum."""
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] |= changes
    return raw_file(file, header, raw[8 + length :])


def test_what_is_written_is_read(file):
    document, tensors = read_container(str(file), "thing", 3)
    assert document == DOCUMENT
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert read_container(file, "thing", 9)[0] == DOCUMENT  # an older version is read


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.bool, torch.complex64]
)
def test_types_survive(tmp_path, dtype):
    value = torch.tensor([[1, 0], [3, 4]]).to(dtype)
    path = write_container(tmp_path / "x.safetensors", "thing", 1, {}, {"value": value})
    found = read_container(path, "thing", 1)[1]["value"]
    assert found.dtype == dtype
    assert torch.equal(found, value)


def test_views_and_shared_memory_are_written_as_values(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"same": base, "again": base, "turned": base.T, "column": base[:, 1], "wide": base[0].expand(2, 4)}
    tensors["tracked"] = torch.ones(2, requires_grad=True)
    _, found = read_container(write_container(tmp_path / "x.safetensors", "thing", 1, {}, tensors), "thing", 1)
    assert all(torch.equal(found[name], value.detach()) for name, value in tensors.items())


def test_the_name_must_tell_the_format(tmp_path):
    with pytest.raises(FileError, match=r"x\.pt: the file's name must end in \.safetensors"):
        write_container(tmp_path / "x.pt", "thing", 1, {}, {})
    assert not list(tmp_path.iterdir())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def no_umask():
    """Let the process create files that everybody may read, as far as the code allows it."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("unnamed", [True, False])
def test_files_and_new_folders_are_for_this_user_only(tmp_path, no_umask, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.setattr("leakgauge.core.container._unnamed", lambda *_: None)
    mine = tmp_path / "mine"
    mine.mkdir(0o755)
    path = write_container(mine / "new" / "folder" / "x.safetensors", "thing", 1, {}, {})
    assert mode(path) == 0o600
    assert [mode(folder) for folder in (path.parent, path.parent.parent, mine)] == [0o700, 0o700, 0o755]
    path.chmod(0o644)
    write_container(path, "thing", 1, {}, {})
    assert mode(path) == 0o600  # also where an earlier version left a file for all
    assert mode(output_folder(mine / "page" / "cache").parent) == 0o700
    assert mode(output_folder(mine)) == 0o755


def test_public_contents_get_the_usual_permissions(tmp_path, no_umask):
    write_atomically(tmp_path / "folder" / "README.md", b"public", private=False)
    assert mode(tmp_path / "folder") == 0o777
    assert mode(tmp_path / "folder" / "README.md") == 0o666


def test_an_existing_file_is_not_created_again(tmp_path):
    (tmp_path / "x").write_bytes(b"before")
    create_file(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"before"


NAMED = "tempfile.NamedTemporaryFile"


class FullDisk:
    """A file on a disk that fills up while it is written."""

    def __init__(self, file, problem):
        self.file, self.problem, self.name = file, problem, file.name

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *problem):
        return self.file.__exit__(*problem)

    def write(self, contents):
        self.file.write(contents[: len(contents) // 2])
        raise self.problem


@pytest.mark.parametrize(
    ("place", "problem", "raised", "words"),
    [
        ("write", OSError(errno.ENOSPC, "No space left on device"), FileError, "No space left on device.. Nothing was"),
        ("replace", OSError(errno.EXDEV, "Invalid link"), FileError, "Invalid link.. Nothing was changed"),
        ("fsync", OSError(errno.EIO, "Input/output error"), FileError, "Input/output error"),
        ("write", KeyboardInterrupt(), KeyboardInterrupt, None),
        ("replace", KeyboardInterrupt(), KeyboardInterrupt, None),
        ("fsync", MemoryError(), MemoryError, None),
    ],
)
@pytest.mark.parametrize("unnamed", [True, False])
def test_a_failure_while_writing_changes_nothing(file, monkeypatch, place, problem, raised, words, unnamed):
    before = file.read_bytes()
    if not unnamed:
        monkeypatch.setattr("leakgauge.core.container._unnamed", lambda *_: None)

    def fail(*arguments):
        raise problem

    if place == "write":
        name, make = ("leakgauge.core.container.open", open) if unnamed else (NAMED, tempfile.NamedTemporaryFile)
        monkeypatch.setattr(name, lambda *words, **more: FullDisk(make(*words, **more), problem), raising=False)
    else:
        monkeypatch.setattr(os, place, fail)
    with pytest.raises(raised, match=words) as caught:
        write_container(file, "thing", 3, {"other": 1}, TENSORS)
    monkeypatch.undo()
    if raised is FileError:
        assert str(file) in str(caught.value)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
def test_a_killed_process_leaves_no_half_file(tmp_path):
    code = (
        "import sys; from pathlib import Path; from leakgauge.core.container import write_atomically\n"
        "for number in range(10**6):\n"
        "    write_atomically(Path(sys.argv[1]) / f'{number % 3}', bytes([number % 3]) * 2**22)\n"
        "    print('written', flush=True)"
    )
    for wait in (0.02, 0.06):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline()
            time.sleep(wait)
            writer.kill()
        assert list(tmp_path.iterdir())
        for path in tmp_path.iterdir():
            contents = path.read_bytes()
            assert len(contents) == 2**22, path
            assert contents == contents[:1] * 2**22


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for name in ("folder.safetensors", "file/x.safetensors", f"{'x' * 300}.safetensors", "a\0b.safetensors"):
        with pytest.raises(FileError, match=r"cannot be written \(.*\)\. Nothing was changed"):
            write_atomically(tmp_path / name, b"contents")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.safetensors"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "zero.safetensors").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(FileError, match="it is not a regular file"):
            read_container(tmp_path / f"{name}.safetensors", "thing", 1)


def test_a_file_that_is_too_big_for_what_it_says_is_not_read(tmp_path):
    path = write_container(tmp_path / "x.safetensors", "thing", 1, {"size": 3}, TENSORS)
    checked = []

    def limit(document):
        checked.append(document)
        return 2**20

    assert read_container(path, "thing", 1, max_bytes=limit)[0] == {"size": 3}
    assert checked == []  # the size of a small file is not checked
    os.truncate(path, 2**40)  # takes no room on the disk
    with pytest.raises(CorruptFile, match="has 1099511627776 bytes, more than the limit of 1048576"):
        read_container(path, "thing", 1, max_bytes=limit)
    assert checked == [{"size": 3}]
    path.write_bytes((2**30).to_bytes(8, "little"))
    os.truncate(path, 2**31)
    with pytest.raises(CorruptFile, match="its header has 1073741824 bytes"):
        read_container(path, "thing", 1)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "folder.safetensors").mkdir()
    for name, words in (
        ("absent.safetensors", "No such file"),
        ("folder.safetensors", "Is a directory"),
        ("a\0b.safetensors", "null"),
        (f"{'x' * 300}.safetensors", "too long"),
    ):
        with pytest.raises(FileError, match=words) as caught:
            read_container(tmp_path / name, "thing", 1)
        assert str(tmp_path / name) in str(caught.value)

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("leakgauge.core.container._without_waiting", denied)
    with pytest.raises(FileError, match=r"x.safetensors: cannot be read \(Permission denied\)"):
        read_container("x.safetensors", "thing", 1)


def test_another_kind_and_a_newer_version(file):
    with pytest.raises(CorruptFile, match="expected an observation, but this is a thing of Leakgauge"):
        read_container(file, "observation", 1)
    with pytest.raises(FutureVersion, match=r"written in version 3 .* reads up to version 2\. Upgrade"):
        read_container(file, "thing", 2)


@pytest.mark.parametrize("version", ["", "-1", "1.0", "three", "²", "9" * 5000, "1" * 10, None, 3])
def test_a_version_that_is_no_number(file, version):
    with pytest.raises(CorruptFile, match=r"x\.safetensors: the version .* is not a number"):
        read_container(with_metadata(file, version=version), "thing", 3)


def test_foreign_files(tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(CorruptFile, match="expected a thing, but this is not a file of Leakgauge"):
        read_container(path, "thing", 1)
    safetensors.torch.save_file({"a": torch.zeros(2)}, path, {"format": "pt"})
    with pytest.raises(CorruptFile, match="not a file of Leakgauge"):
        read_container(path, "thing", 1)
    torch.save({"a": torch.zeros(2)}, path)
    with pytest.raises(CorruptFile, match="not a safetensors file"):
        read_container(path, "thing", 1)
    path.write_text("a,b\n1,2\n" * 20, encoding="utf-8")
    with pytest.raises(CorruptFile, match="not a safetensors file"):
        read_container(path, "thing", 1)


def test_a_pickle_is_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = tmp_path / "x.safetensors"
    torch.save({"a": Trap()}, path)
    with pytest.raises(CorruptFile):
        read_container(path, "thing", 1)
    assert not (tmp_path / "sprung").exists()


def test_truncation_anywhere_is_noticed(file):
    raw = file.read_bytes()
    for length in [*range(16), *range(16, len(raw), 7), len(raw) - 1]:
        file.write_bytes(raw[:length])
        with pytest.raises(CorruptFile, match=r"x\.safetensors: "):
            read_container(file, "thing", 3)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff\xfe{}",
        b"\x80abc",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"__metadata__":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b'{"__metadata__": 3}',
        b'{"__metadata__": {"leakgauge": ["thing"]}}',
        b'{"__metadata__": {"leakgauge": "thing", "version": "3"}}',
        b'{"__metadata__": {"leakgauge": "thing", "version": "3", "document": 5, "sha256": "x"}}',
        b'{"__metadata__": {"leakgauge": "thing", "version": "3", "document": "{}", "sha256": null}}',
        b'{"__metadata__": {"leakgauge": "thing", "version": "3"}, "a": {"dtype": "F99", "shape": [1], '
        b'"data_offsets": [0, 4]}}',
        b'{"__metadata__": {"leakgauge": "thing", "version": "3"}, "a": {"dtype": "F32", "shape": '
        b'[1000000000000], "data_offsets": [0, 4000000000000]}}',
        b'{"__metadata__": {"leakgauge": "thing", "version": "3"}, "a": {"dtype": "F32", "shape": [-1], '
        b'"data_offsets": [0, 4]}}',
    ],
)
def test_headers_from_hell(tmp_path, header):
    with pytest.raises(CorruptFile, match=r"x\.safetensors: "):
        read_container(raw_file(tmp_path / "x.safetensors", header, bytes(4)), "thing", 3)


def test_a_header_that_claims_to_be_huge(tmp_path):
    path = tmp_path / "x.safetensors"
    for length in (9, 2**31, 2**62, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(CorruptFile, match="cut short"):
            read_container(path, "thing", 1)


def test_any_change_of_contents_breaks_the_checksum(file):
    raw = file.read_bytes()
    file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(CorruptFile, match=r"checksum\. The file was altered"):
        read_container(file, "thing", 3)
    file.write_bytes(raw)
    with pytest.raises(CorruptFile, match="checksum"):
        read_container(with_metadata(file, document='{"name": "Eve"}'), "thing", 3)
    file.write_bytes(raw)
    with pytest.raises(CorruptFile, match="checksum"):
        read_container(with_metadata(file, version="2"), "thing", 3)


def test_of_two_keys_with_one_name_neither_gets_past_the_checksum(file):
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = raw[8 : 8 + length].rstrip()
    assert header.startswith(b'{"__metadata__"')
    twice = header[:-1] + b', "__metadata__": {"leakgauge": "thing", "version": "3", "document": "{}"}}'
    with pytest.raises(CorruptFile):
        read_container(raw_file(file, twice, raw[8 + length :]), "thing", 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "its description is not JSON"),
        ("", "its description is not JSON"),
        ("[" * 100_000, "its description is not JSON"),
        ("9" * 5000, "its description is not JSON"),
        ("[1, 2]", "its description is not a JSON object"),
        ("NaN", "its description is not a JSON object"),
    ],
)
def test_a_sealed_description_that_is_no_object(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr("leakgauge.core.container.json.dumps", sealing(text))
    path = write_container(tmp_path / "x.safetensors", "thing", 1, {}, {})
    monkeypatch.undo()
    with pytest.raises(CorruptFile, match=words):
        read_container(path, "thing", 1)


def sealing(text):
    """Return a json.dumps with which write_container seals ``text`` with a correct checksum."""
    dumps = json.dumps
    return lambda value, **options: text if value == {} else dumps(value, **options)


def test_nan_in_a_document_is_refused_on_writing(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_container(tmp_path / "x.safetensors", "thing", 1, {"lr": float("nan")}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_exists_is_not_replaced_where_that_is_not_wanted(tmp_path, monkeypatch, links):
    if not links:  # as on a file system without second names

        def refuse(*_, **__):
            raise PermissionError(errno.EPERM, "not permitted")

        monkeypatch.setattr(container, "_unnamed", lambda *_: None)
        monkeypatch.setattr(os, "link", refuse)
    target = tmp_path / "x"
    write_atomically(target, b"first", replace=False)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    write_atomically(target, b"second")
    with pytest.raises(FileError, match=r"x: cannot be written \((File exists|not permitted)\)"):
        write_atomically(target, b"third", replace=False)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"second")]


def test_a_new_folder_has_the_first_free_number_and_is_private(tmp_path):
    (tmp_path / "runs" / "run-2").mkdir(parents=True)
    names = [container.new_folder(tmp_path / "runs", "run").name for _ in range(2)]
    assert names == ["run-1", "run-3"]
    assert (tmp_path / "runs" / "run-1").stat().st_mode & 0o777 == 0o700
    assert container.new_folder(tmp_path / "more" / "runs", "run").name == "run-1"
