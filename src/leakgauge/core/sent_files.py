"""Files of the weights that a server sent, of which the captures of one round share one.

All clients of a round usually get the same weights and statistics. A capture may hold the checksum of these tensors
instead of the tensors. They are then in the file ``sent/CHECKSUM.safetensors`` beside the capture. The checksum of a
capture covers this name, and the name is the checksum of the file's contents, so that no tensor can be exchanged
without notice. A capture can name no other file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from leakgauge.core.container import SUFFIX, checksum_of, digest_of, read_container, write_container
from leakgauge.core.errors import CorruptFile, FileError, shown

#: The folder beside the captures.
FOLDER = "sent"
KIND = "set of sent weights"
VERSION = 1
#: The groups of tensors that captures share.
TREES = ("sent", "buffers")
_CHECKSUM = re.compile(r"[0-9a-f]{64}\Z")


def store(capture: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors to the file that captures of a folder share, unless it exists, and return their checksum.

    Args:
        capture: The path of the capture.
        tensors: The tensors of the groups in :data:`TREES`.
    """
    checksum = digest_of(KIND, VERSION, {}, tensors)
    path = _path(capture, checksum)
    if checksum_of(path) != checksum:
        write_container(path, KIND, VERSION, {}, tensors, checksum=checksum)
    return checksum


def fetch(capture: Path, checksum: object, max_bytes: Callable[[Mapping[str, Any]], int]) -> dict[str, Tensor]:
    """Return the tensors with a checksum.

    Args:
        capture: The path of the capture that names the checksum.
        checksum: The checksum in the capture's document.
        max_bytes: A function that returns the largest allowed file size in bytes.
    """
    if not isinstance(checksum, str) or not _CHECKSUM.match(checksum):
        raise CorruptFile(f"{capture}: {shown(checksum)} is not the checksum of sent weights")
    path = _path(capture, checksum)
    if not path.exists():
        raise FileError(
            f"{capture}: the weights that were sent to the client are in {FOLDER}/{path.name} beside it, and this file "
            f"is missing. Copy a capture together with its folder {FOLDER}"
        )
    document, tensors = read_container(path, KIND, VERSION, max_bytes)
    if document or digest_of(KIND, VERSION, {}, tensors) != checksum:
        raise CorruptFile(f"{path}: holds other weights than those that {capture.name} names")
    for name in tensors:
        if not name.startswith(tuple(f"{tree}/" for tree in TREES)):
            raise CorruptFile(f"{path}: unexpected tensor {shown(name)}")
    return tensors


def _path(capture: Path, checksum: str) -> Path:
    return capture.parent / FOLDER / f"{checksum}{SUFFIX}"
