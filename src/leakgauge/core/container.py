"""Safetensors files that hold tensors and a JSON object, which is called the document of the file.

A file is written under a temporary name and then renamed, so that a reader never sees a half-written file. Each file
stores a checksum of its document and its tensors, so that any change is detected. No file is ever unpickled.

Captures, caches and reports hold data of clients. Files that this module writes can be read by the user who runs
Leakgauge and by nobody else (mode 0600), and folders that it creates can be entered by that user only (mode 0700).
Folders that exist keep their mode. All other modules write through this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from leakgauge.core.errors import CorruptFile, FileError, FutureVersion, printable, shown
from leakgauge.core.tensor_bytes import bytes_of, pieces_of_file

SUFFIX = ".safetensors"
#: The largest header in bytes. It has room for the names and shapes of about ten thousand tensors.
MAX_HEADER = 4 * 2**20
#: The size in bytes up to which a file is read without a check of its size.
SMALL = 16 * 2**20
#: The permissions of files and of folders that are written. No other user of the machine has any.
FILE_MODE, FOLDER_MODE = 0o600, 0o700
Location = str | os.PathLike[str]
Contents = bytes | Callable[[], Iterable[bytes | memoryview]]


def write_container(
    path: Location,
    kind: str,
    version: int,
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    replace: bool = True,
    checksum: str | None = None,
) -> Path:
    """Write tensors and a JSON object to a safetensors file, and return the path of the file.

    The file is written atomically, which means completely or not at all.

    Args:
        path: The path of the file. The name must end in ``.safetensors``.
        kind: One word for the content of the file, such as "observation". It is stored in the file.
        version: The version of the file format. It is stored in the file.
        document: The JSON object to store beside the tensors.
        tensors: A dictionary from names to tensors.
        replace: Whether an existing file is replaced. Otherwise, it is an error.
        checksum: The checksum of :func:`digest_of`, if it is known already.
    """
    target = Path(path)
    if target.suffix != SUFFIX:
        raise FileError(f"{target}: the file's name must end in {SUFFIX}")
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    header = {
        "leakgauge": kind,
        "version": str(version),
        "document": text,
        "sha256": checksum or _digest(kind, version, text, tensors),
    }
    write_atomically(target, partial(pieces_of_file, tensors, header), replace=replace)
    return target


def digest_of(kind: str, version: int, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the checksum that a file of :func:`write_container` with these contents has.

    Args:
        kind: One word for the content of the file.
        version: The version of the file format.
        document: The JSON object.
        tensors: A dictionary from names to tensors.
    """
    return _digest(kind, version, json.dumps(document, sort_keys=True, allow_nan=False), tensors)


def read_container(
    path: Location, kind: str, version: int, max_bytes: Callable[[Mapping[str, Any]], int] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file of :func:`write_container`, verify its checksum, and return its JSON object and its tensors.

    If ``max_bytes`` is given, a file of more than 16 MB is read only if its size is within the limit that ``max_bytes``
    returns. This keeps a file from filling the memory. The checksum is verified later, so the JSON object that
    ``max_bytes`` gets may be wrong. ``max_bytes`` must use it only to compute the limit.

    Args:
        path: The path of the file.
        kind: The word for the content that the file must have, such as "observation".
        version: The newest version of the file format that can be read. Older versions are read too.
        max_bytes: A function that gets the JSON object of the file and returns the largest allowed file size in bytes.
    """
    source = Path(path)
    header, raw = _read_bytes(source, kind, version, max_bytes)
    try:
        tensors = safetensors.torch.load(raw)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, OverflowError) as problem:
        raise CorruptFile(f"{source}: its tensors cannot be read ({_first_line(problem)})") from problem
    text = header.get("document")
    if not isinstance(text, str) or header.get("sha256") != _digest(kind, int(header["version"]), text, tensors):
        raise CorruptFile(f"{source}: its contents do not match their checksum. The file was altered or damaged.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise CorruptFile(f"{source}: its description is not JSON ({_first_line(problem)})") from problem
    if not isinstance(document, dict):
        raise CorruptFile(f"{source}: its description is not a JSON object")
    return document, tensors


def _read_bytes(
    source: Path, kind: str, version: int, max_bytes: Callable[[Mapping[str, Any]], int] | None
) -> tuple[dict[str, Any], bytes]:
    """Check the header and the size of a file, and return the metadata in the header and all bytes of the file."""
    try:
        with open(source, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileError(f"{source}: cannot be read, because it is not a regular file")
            start = _start(source, file, status.st_size)
            header = _header(source, start)
            _check_kind(source, header, kind, version)
            if max_bytes is not None and status.st_size > SMALL:
                _check_size(source, status.st_size, max_bytes, header.get("document"))
            return header, start + file.read(status.st_size - len(start))
    except (OSError, ValueError) as problem:  # a ValueError stands for a name that no file can have
        raise FileError(f"{source}: cannot be read ({getattr(problem, 'strerror', None) or problem})") from problem
    except MemoryError as problem:
        raise FileError(f"{source}: cannot be read, because it is too big for this machine's memory") from problem


def kind_of(path: Location) -> str | None:
    """Return the kind that the header of a file names, or ``None`` if Leakgauge did not write the file.

    Only the header is read, so the rest of the file may be damaged.
    """
    return _named(path, "leakgauge")


def checksum_of(path: Location) -> str | None:
    """Return the checksum that the header of a file names, or ``None`` if there is none.

    Only the header is read, so the rest of the file may be damaged.
    """
    return _named(path, "sha256")


def text_of(path: Location, key: str) -> str | None:
    """Return a text in the header of a file, such as its JSON object, or ``None`` if there is none.

    Only the header is read, so nothing shows that the text is intact.

    Args:
        path: The path of the file.
        key: The name of the text.
    """
    return _named(path, key)


def _named(path: Location, key: str) -> str | None:
    """Return a text in the metadata of a file, or ``None`` if the file or the text cannot be read."""
    source = Path(path)
    try:
        with open(source, "rb", opener=_without_waiting) as file:
            text = _header(source, _start(source, file, os.fstat(file.fileno()).st_size)).get(key)
    except (OSError, ValueError, FileError):
        return None
    return text if isinstance(text, str) else None


def write_atomically(target: Path, contents: Contents, *, private: bool = True, replace: bool = True) -> None:
    """Write a file atomically, so that it is written either completely or not at all.

    Args:
        target: The file. Missing folders are created.
        contents: The bytes to write, or a function that yields them in pieces.
        private: Whether only this user may read the file. Pass false for contents that are public anyway.
        replace: Whether an existing file is replaced. Otherwise, it is an error, also if another process writes it at
            the same moment.
    """
    temporary = None
    try:
        create_folder(target.parent, private=private)
        temporary = _unnamed(target, contents)
        if temporary is None:
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
                temporary = Path(file.name)
                _write(file, contents)
                file.flush()
                os.fsync(file.fileno())
        if not private:
            os.chmod(temporary, 0o666 & ~_umask())
        if replace or not _moved(temporary, target):
            os.replace(temporary, target)
    except BaseException as problem:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(problem, (OSError, ValueError)):  # a ValueError stands for a name that no file can have
            reason = getattr(problem, "strerror", None) or problem
            raise FileError(f"{target}: cannot be written ({reason}). Nothing was changed.") from problem
        raise


def _moved(temporary: Path, target: Path) -> bool:
    """Rename a file, or raise an error if another file has the new name, even if it got the name a moment ago.

    Return false if the file system cannot do both at once, and no file has the new name.
    """
    try:
        os.link(temporary, target)
    except OSError:
        if target.exists():
            raise
        return False
    temporary.unlink()
    return True


def _write(stream: IO[bytes], contents: Contents) -> None:
    for piece in [contents] if isinstance(contents, bytes) else contents():
        stream.write(piece)


def _unnamed(target: Path, contents: Contents) -> Path | None:
    """Write the contents to a file without a name, link it to a temporary name, and return the temporary path.

    A process that is killed while it writes leaves no half-written file behind. Return ``None`` if the operating system
    or the file system does not support files without a name (``O_TMPFILE`` of Linux).
    """
    try:
        file = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, FILE_MODE)
    except (AttributeError, OSError):
        return None
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        with open(file, "wb", closefd=False) as stream:
            _write(stream, contents)
            stream.flush()
            os.fsync(file)
        name = f".{target.name}.{os.getpid()}.{time.monotonic_ns()}"
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder)  # dst_dir_fd makes os.link follow the link
        return target.parent / name
    except FileNotFoundError:
        return None
    finally:
        os.close(file)
        os.close(folder)


def output_folder(path: Location) -> Path:
    """Create a folder for results and return its path, or raise an error if the folder cannot be written to."""
    folder = Path(path)
    try:
        create_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise FileError(f"{folder}: cannot write results there ({problem.strerror or problem})") from problem
    return folder


def create_folder(folder: Path, *, private: bool = True) -> None:
    """Create a folder and its missing parents. Existing folders are not changed.

    Args:
        folder: The folder.
        private: Whether only this user may enter the new folders.
    """
    if not folder.is_dir():
        if folder.parent != folder:
            create_folder(folder.parent, private=private)
        folder.mkdir(FOLDER_MODE if private else 0o777, exist_ok=True)


def new_folder(parent: Path, name: str) -> Path:
    """Create the first folder ``name-1``, ``name-2`` and so on that does not exist yet, and return its path.

    Args:
        parent: The folder in which the folder is created. It is created if it is missing.
        name: The name without the number.
    """
    create_folder(parent)
    number = 1
    while True:
        folder = parent / f"{name}-{number}"
        try:
            folder.mkdir(FOLDER_MODE)
        except FileExistsError:
            number += 1
            continue
        return folder


def create_file(path: Path) -> None:
    """Create an empty file that only this user can read, unless the file exists."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _without_waiting(path: str, flags: int) -> int:
    """Open a file and return its descriptor. Return at once even if the path is a pipe that has no writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _start(source: Path, file: BinaryIO, size: int) -> bytes:
    """Return the first bytes of a safetensors file, which are the length of the header and the header itself."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise CorruptFile(
            f"{source}: not a safetensors file, or cut short ({size} bytes). Expected a file that Leakgauge saved."
        )
    if length > MAX_HEADER:
        raise CorruptFile(f"{source}: its header has {length} bytes, more than the limit of {MAX_HEADER}")
    return start + file.read(length)


def _header(source: Path, start: bytes) -> dict[str, Any]:
    """Return the metadata in the header of a safetensors file."""
    try:
        header = json.loads(start[8:])
    except (ValueError, RecursionError) as problem:
        raise CorruptFile(f"{source}: not a safetensors file (its header is not JSON), or altered") from problem
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _check_kind(source: Path, header: Mapping[str, Any], kind: str, version: int) -> None:
    """Raise an error if the metadata names other content than ``kind`` or a newer file format than ``version``."""
    actual = header.get("leakgauge")
    if actual != kind:
        description = (
            f"{_article(printable(actual))} of Leakgauge" if isinstance(actual, str) else "not a file of Leakgauge"
        )
        raise CorruptFile(f"{source}: expected {_article(kind)}, but this is {description}")
    written = header.get("version", "")
    if not (isinstance(written, str) and written.isascii() and written.isdigit() and len(written) < 10):
        raise CorruptFile(f"{source}: the version {shown(written)} is not a number. The file was altered.")
    if int(written) > version:
        raise FutureVersion(
            f"{source}: written in version {written} of the format, but this Leakgauge reads up to version {version}. "
            "Upgrade Leakgauge."
        )


def _check_size(source: Path, size: int, max_bytes: Callable[[Mapping[str, Any]], int], text: object) -> None:
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        document = None
    limit = max_bytes(document if isinstance(document, dict) else {})
    if size > limit:
        raise CorruptFile(f"{source}: has {size} bytes, more than the limit of {limit} for such a file")


def _digest(kind: str, version: int, text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps([kind, version, text]).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


def _article(kind: str) -> str:
    return f"{'an' if kind[:1] in tuple('aeiou') else 'a'} {kind}"
