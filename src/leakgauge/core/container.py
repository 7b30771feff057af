"""One file for tensors and the words about them: safetensors with a JSON document in its header.

Written to a temporary file beside the target and renamed, so that a reader never sees half of one. A digest
over document and tensors tells an altered file from an intact one. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from leakgauge.core.errors import CorruptFile, FileError, FutureVersion

SUFFIX = ".safetensors"
#: The longest header that is read: room for the names and shapes of some ten thousand tensors.
MOST_HEADER = 4 * 2**20
#: Files up to so many bytes are read whatever they are.
SMALL = 16 * 2**20
Location = str | os.PathLike[str]


def write_container(
    path: Location, kind: str, version: int, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write a container of the given kind, atomically; return its path."""
    target = Path(path)
    if target.suffix != SUFFIX:
        raise FileError(f"{target}: the file's name must end in {SUFFIX}")
    # Copies, because the format refuses tensors that share memory, as frozen weights before and after training do.
    contents = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    header = {
        "leakgauge": kind,
        "version": str(version),
        "document": text,
        "sha256": _digest(kind, version, text, contents),
    }
    write_atomically(target, safetensors.torch.save(contents, header))
    return target


def read_container(
    path: Location, kind: str, version: int, most: Callable[[Mapping[str, Any]], int] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a container of the given kind, of this version or an older one, and check that it is intact.

    ``most`` says how many bytes a file with this description may have. For a file that is not small, it is asked before
    the tensors are read, so that they cannot fill the memory: the description may be altered, and counts for no more.
    """
    source = Path(path)
    try:
        with open(source, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileError(f"{source}: cannot be read: it is no plain file")
            start = _start(source, file, status.st_size)
            header = _header(source, start)
            written = _check_kind(source, header, kind, version)
            if most is not None and status.st_size > SMALL:
                _check_size(source, status.st_size, most, header.get("document"))
            raw = start + file.read(status.st_size - len(start))
    except (OSError, ValueError) as problem:  # a ValueError is a name that no file can have
        raise FileError(f"{source}: cannot be read: {getattr(problem, 'strerror', None) or problem}") from problem
    except MemoryError as problem:
        raise FileError(f"{source}: cannot be read: it is too big for this machine's memory") from problem
    try:
        tensors = safetensors.torch.load(raw)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, OverflowError) as problem:
        raise CorruptFile(f"{source}: its tensors cannot be read ({_first_line(problem)})") from problem
    text = header.get("document")
    if not isinstance(text, str) or header.get("sha256") != _digest(kind, written, text, tensors):
        raise CorruptFile(f"{source}: its contents do not match their checksum; the file was altered or damaged")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise CorruptFile(f"{source}: its description is not JSON ({_first_line(problem)})") from problem
    if not isinstance(document, dict):
        raise CorruptFile(f"{source}: its description is not a JSON object")
    return document, tensors


def write_atomically(target: Path, contents: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _unnamed(target, contents)
        if temporary is None:
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
                temporary = Path(file.name)
                file.write(contents)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException as problem:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(problem, (OSError, ValueError)):  # a ValueError is a name that no file can have
            reason = getattr(problem, "strerror", None) or problem
            raise FileError(f"{target}: cannot be written: {reason}; nothing was changed") from problem
        raise


def _unnamed(target: Path, contents: bytes) -> Path | None:
    """Write to a file that has no name until it is whole, so that not even a killed process leaves half of one.

    ``None`` where the system has no such files; those are Linux's.
    """
    try:
        file = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except (AttributeError, OSError):
        return None
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(contents)
            stream.flush()
            os.fsync(file)
        name = f".{target.name}.{os.getpid()}.{time.monotonic_ns()}"
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder)  # with a folder's number, links are followed
        return target.parent / name
    except FileNotFoundError:
        return None
    finally:
        os.close(file)
        os.close(folder)


def output_folder(path: Location) -> Path:
    """Make a folder for results, and refuse one that cannot be written to before any work starts."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise FileError(f"{folder}: cannot write results there: {problem.strerror or problem}") from problem
    return folder


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for what is no file, such as a pipe that nobody writes to."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _start(source: Path, file: BinaryIO, size: int) -> bytes:
    """The length of the header, and the header."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise CorruptFile(
            f"{source}: not a safetensors file, or cut short ({size} bytes); expected one that Leakgauge saved"
        )
    if length > MOST_HEADER:
        raise CorruptFile(f"{source}: its header has {length} bytes, more than the {MOST_HEADER} that are read")
    return start + file.read(length)


def _header(source: Path, start: bytes) -> dict[str, Any]:
    """The metadata of a safetensors file, read without its tensors."""
    try:
        header = json.loads(start[8:])
    except (ValueError, RecursionError) as problem:
        raise CorruptFile(f"{source}: not a safetensors file (its header is not JSON), or altered") from problem
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _check_kind(source: Path, header: Mapping[str, Any], kind: str, version: int) -> int:
    """Refuse what is not of this kind, or of a newer version; return the version."""
    found = header.get("leakgauge")
    if found != kind:
        what = f"a {found} of Leakgauge" if isinstance(found, str) else "no file of Leakgauge's"
        raise CorruptFile(f"{source}: expected {_article(kind)}, but this is {what}")
    written = header.get("version", "")
    if not (isinstance(written, str) and written.isascii() and written.isdigit() and len(written) < 10):
        raise CorruptFile(f"{source}: the version {written!r} is not a number; the file was altered")
    if int(written) > version:
        raise FutureVersion(
            f"{source}: written in version {written} of the format; this Leakgauge reads up to {version}: upgrade it"
        )
    return int(written)


def _check_size(source: Path, size: int, most: Callable[[Mapping[str, Any]], int], text: object) -> None:
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        document = None
    limit = most(document if isinstance(document, dict) else {})
    if size > limit:
        raise CorruptFile(f"{source}: has {size} bytes, more than the {limit} that such a file can need")


def _digest(kind: str, version: int, text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps([kind, version, text]).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
