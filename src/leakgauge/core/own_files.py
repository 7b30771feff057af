"""Files of results, which replace only files that Leakgauge wrote.

The format of a file shows who wrote it. A page names its generator, a JSON file has the key ``leakgauge``, a picture
names its software, and a table has the columns of Leakgauge.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from leakgauge.core.container import Location, output_folder, write_atomically
from leakgauge.core.errors import FileError

#: The bytes of which a file of Leakgauge has at least one near its start, by the suffix of its name.
MARKS: dict[str, tuple[bytes, ...]] = {
    ".html": (b'<meta name="generator" content="Leakgauge">',),
    ".json": (b'"leakgauge":',),
    ".csv": (b"attack,defence,knows_defence,", b",attacker,verdict\r\n", b"step,lowest_loss,psnr,"),
    ".png": (b"tEXtSoftware\0Leakgauge",),
    ".safetensors": (b'"leakgauge":',),
}
#: The mark of a JUnit file, whose name the user chooses.
JUNIT = (b'<testsuite name="leakgauge"',)
#: The number of bytes at the start of a file that are searched for its mark.
_START = 4096


def check_own(path: Path, marks: tuple[bytes, ...] | None = None) -> None:
    """Raise an error if a file exists that Leakgauge did not write, so that it must not be replaced.

    Args:
        path: The file.
        marks: The bytes of which one must be near the start of the file. The default depends on the suffix of the name.
    """
    try:
        if not path.exists():
            return
        with path.open("rb") as file:
            start = file.read(_START)
    except (OSError, ValueError) as problem:  # a ValueError stands for a name that no file can have
        reason = getattr(problem, "strerror", None) or problem
        raise FileError(f"{path}: cannot be written ({reason}). Choose another place for the results") from problem
    known = MARKS[path.suffix] if marks is None else marks
    if start and not any(mark in start for mark in known):
        raise FileError(
            f"{path}: is not a file that Leakgauge wrote, so it is not replaced. Move it away, or choose another place "
            "for the results"
        )


def check_output(folder: Location, names: Iterable[str], junit: Location | None = None) -> None:
    """Raise an error if results cannot be written to a folder, or would replace files that Leakgauge did not write.

    Args:
        folder: The folder. If it does not exist, a trial creates and removes it.
        names: The names of the files that will be written.
        junit: The path of the JUnit file that will be written.
    """
    _try_folder(Path(folder))
    for name in names:
        check_own(Path(folder) / name)
    if junit is not None:
        check_own(Path(junit), JUNIT)
        _try_folder(Path(junit).parent)


def _try_folder(folder: Path) -> None:
    """Raise an error if files cannot be written to a folder. A folder that does not exist is not left behind."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        output_folder(folder)
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()


def write_own(path: Path, contents: bytes, marks: tuple[bytes, ...] | None = None) -> None:
    """Write a file completely or not at all, unless it would replace a file that Leakgauge did not write.

    Args:
        path: The file. Missing folders are created.
        contents: The bytes to write, which hold a mark.
        marks: The bytes of which one must be near the start of an existing file. The default depends on the suffix.
    """
    check_own(path, marks)
    write_atomically(path, contents)
