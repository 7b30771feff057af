import os

import pytest

from leakgauge.core.errors import CorruptFile
from leakgauge.core.files import machine_memory, regular_file


def test_only_files_are_accepted(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1234")
    assert regular_file(file, largest=4) == file
    (tmp_path / "link").symlink_to(file)
    assert regular_file(tmp_path / "link").read_bytes() == b"1234"
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "is a pipe"), (".", "is a folder"), ("none", "No such file"), ("a\0", "null")):
        with pytest.raises(CorruptFile, match=words):
            regular_file(tmp_path / name)
    with pytest.raises(CorruptFile, match="more than the limit"):
        regular_file(file, largest=3)


def test_a_machine_has_memory():
    assert machine_memory() > 2**28
