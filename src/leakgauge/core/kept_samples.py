"""The samples that a client kept of one round, in the order in which it trained on them, and their files.

A file holds the samples as a person sees them, their targets, and one list of rows for each batch. It stays on the
client's machine and belongs to evaluation, so no attack reads it. The samples may be encrypted for an auditor
(:mod:`leakgauge.core.sealing`). The names, the run and the round stay readable, so that captures can be paired.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from leakgauge.core.container import SUFFIX, Location, kind_of, read_container, text_of, write_container
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.core.observation_file import plain
from leakgauge.core.sealing import opened, sealed
from leakgauge.core.tensor_bytes import pieces_of_file
from leakgauge.core.truth import Truth

#: The folder beside the captures of a run.
FOLDER = "kept"
KIND = "set of kept samples"
VERSION = 1
#: The largest size in bytes of a file that is read.
LARGEST = 4 * 2**30
#: The largest number of other clients' samples that blind guesses are made from.
REFERENCE = 512
_DOCUMENT = {"run", "round", "names", "data", "passes", "sealed"}
_TENSORS = {"inputs", "targets", "rows", "sizes"}


@dataclass(frozen=True, eq=False)
class KeptSamples:
    """The samples that one client trained on in one round.

    Args:
        run: The number or the name of the run.
        round: The index of the round.
        names: The names under which the server may know the client. The first one is the client's usual name.
        data: The description of a sample.
        inputs: The different samples, without normalisation.
        targets: Their targets.
        order: The rows of each batch, in the order in which the client trained.
        passes: The number of batches of each pass over the samples.
        file: The file that the samples were read from.
    """

    run: str
    round: int
    names: tuple[str, ...]
    data: DataSpec
    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    order: tuple[Tensor, ...] = field(repr=False)
    passes: tuple[int, ...]
    file: Path | None = None

    def truth(self, data: DataSpec, others: Sequence[KeptSamples] = ()) -> Truth:
        """Return the samples as the truth behind a capture.

        If random changes, such as flips, made other samples of them in each pass, the truth holds those of the first
        pass, and ``trained`` holds all of them.

        Args:
            data: The description of a sample in the capture.
            others: Samples of other clients, from which chance levels are computed.
        """
        reference: dict[str, Any] = {}
        if others:
            reference["reference_inputs"] = torch.cat([one.inputs for one in others])[:REFERENCE]
            reference["reference_targets"] = torch.cat([one.targets for one in others])[:REFERENCE]
        whole = Truth(self.inputs, self.targets, data, self.order, **reference)
        first = torch.cat(self.order[: self.passes[0]]).unique() if self.passes and self.order else None
        if first is None or len(first) == len(self.inputs):
            return whole
        return Truth(self.inputs[first], self.targets[first], data, trained=whole, **reference)


def save_kept(kept: KeptSamples, path: Location, key: bytes | None = None) -> Path:
    """Save kept samples to a file that only this user can read, and return the path of the file.

    Args:
        kept: The samples.
        path: The path of the file. An existing file is not replaced.
        key: The auditor's public key as PEM. By default, the samples are not encrypted.
    """
    document = {
        "run": kept.run, "round": kept.round, "names": list(kept.names), "data": asdict(kept.data),
        "passes": list(kept.passes), "sealed": key is not None,
    }  # fmt: skip
    sizes = torch.tensor([len(rows) for rows in kept.order], dtype=torch.int64)
    rows = torch.cat(kept.order) if kept.order else torch.zeros(0, dtype=torch.int64)
    tensors = {"inputs": kept.inputs, "targets": kept.targets, "rows": rows, "sizes": sizes}
    if key is not None:
        content = b"".join(bytes(piece) for piece in pieces_of_file(tensors, {}))
        secret = sealed(content, key, _context(document))
        tensors = {"sealed": torch.frombuffer(bytearray(secret), dtype=torch.uint8)}
    return write_container(path, KIND, VERSION, document, tensors, replace=False)


def load_kept(path: Location, key: bytes | None = None) -> KeptSamples:
    """Return the kept samples in a file.

    Args:
        path: The path of the file.
        key: The auditor's private key as PEM, if the samples are encrypted.
    """
    document, tensors = read_container(path, KIND, VERSION, lambda _: LARGEST)
    if document.keys() != _DOCUMENT:
        raise CorruptFile(f"{path}: its description lacks a part, or has one too many")
    if document["sealed"]:
        if key is None:
            raise InvalidInput(f"{path}: the samples are encrypted. Pass --key with the auditor's private key")
        if tensors.keys() != {"sealed"}:
            raise CorruptFile(f"{path}: the encrypted samples are missing")
        content = opened(bytes(tensors["sealed"].numpy()), key, _context(document))
        try:
            tensors = safetensors.torch.load(content)
        except (SafetensorError, ValueError) as problem:
            raise CorruptFile(f"{path}: the encrypted samples cannot be read") from problem
    try:
        return _assembled(document, tensors, Path(path))
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError, RuntimeError) as problem:
        raise CorruptFile(f"{path}: does not hold kept samples as Leakgauge writes them ({problem})") from problem


def _context(document: Mapping[str, Any]) -> bytes:
    """Return the readable part of a file, which an encrypted part is tied to."""
    return json.dumps(document, sort_keys=True).encode()


def _assembled(document: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> KeptSamples:
    if tensors.keys() != _TENSORS:
        raise ValueError("its tensors have other names")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document["data"].items()
    }
    data: DataSpec = DataSpec(**values)
    inputs, targets, rows, sizes = (tensors[name] for name in ("inputs", "targets", "rows", "sizes"))
    passes = tuple(int(count) for count in document["passes"])
    if rows.dtype != torch.int64 or sizes.dtype != torch.int64 or sum(passes) != len(sizes) or bool((sizes < 0).any()):
        raise ValueError("the order has no rows")
    if int(sizes.sum()) != len(rows) or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(inputs)):
        raise ValueError("the order names other samples")
    if len(inputs) != len(targets):
        raise ValueError("the numbers of samples and targets differ")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise ValueError("a sample holds NaN or infinity")
    names = tuple(str(name) for name in document["names"])
    order = tuple(rows.split(sizes.tolist()))
    return KeptSamples(str(document["run"]), int(document["round"]), names, data, inputs, targets, order, passes, path)


def kept_files(place: Path) -> Iterator[Path]:
    """Yield the files of kept samples in a folder and in its subfolders.

    Args:
        place: The folder.
    """
    for path in sorted(place.rglob(f"*{SUFFIX}")):
        if not path.name.startswith(".") and path.is_file() and kind_of(path) == KIND:
            yield path


def read_heading(path: Path) -> tuple[str, int, tuple[str, ...]]:
    """Return the run, the round and the names of a file of kept samples, without its samples.

    Args:
        path: The path of the file.
    """
    text = document_of(path)
    try:
        names = tuple(map(str, text["names"]))
        return str(text["run"]), int(text["round"]), (names[0], *names[1:])
    except (LookupError, TypeError, ValueError, OverflowError) as problem:
        raise CorruptFile(f"{path}: does not name a run, a round and a client") from problem


def document_of(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file of kept samples. Only the header of the file is read.

    Args:
        path: The path of the file.
    """
    try:
        document = json.loads(text_of(path, "document") or "")
    except (ValueError, RecursionError) as problem:
        raise CorruptFile(f"{path}: its description is not JSON") from problem
    if not isinstance(document, dict):
        raise CorruptFile(f"{path}: its description is not a JSON object")
    return document


def kept_path(folder: Path, run: int | str, client: str, round: int) -> Path:
    """Return the path of a new file of kept samples.

    Args:
        folder: The folder of the captures.
        run: The number or the name of the run.
        client: The name of the client.
        round: The index of the round.
    """
    place = folder / f"run-{plain(str(run))}" / FOLDER
    number, path = 1, place / f"{plain(client)}_round-{round:06d}{SUFFIX}"
    while path.exists():
        number += 1
        path = place / f"{plain(client)}_round-{round:06d}_{number}{SUFFIX}"
    return path
