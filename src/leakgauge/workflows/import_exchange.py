"""The workflow that turns a folder of exchanged weights into captures, for frameworks without a recorder.

The folder is written by any program, without Leakgauge. Weights are safetensors or npz files::

    exchange/
      federation.json                     {"data": {"shape": [1, 28, 28], "classes": 10, "mean": [0], "std": [1]},
                                           "training": {"lr": 0.1, "epochs": 1, "batch_size": 32}}
      sent/4.safetensors                  the weights that all clients of round 4 got, or
      sent/4/hospital-3.safetensors       the weights that one client got
      returned/4/hospital-3.safetensors   the weights that the client returned, or
      gradient/4/hospital-3.safetensors   the gradient that it returned instead
      training/4/hospital-3.json          optional: what is known of this client's training, such as {"samples": 600}

The files are not trusted. A file that cannot be read is reported, and the others are imported.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from leakgauge import models
from leakgauge.core.container import SUFFIX, Location, new_folder
from leakgauge.core.errors import FileError, InvalidInput, LeakgaugeError, UnknownName, printable, shown
from leakgauge.core.observation import DataSpec, LocalTraining
from leakgauge.federation.recording.recorder import UNKNOWN, Captures, Exchange
from leakgauge.federation.recording.states import Arrays, arrays_in

#: The file that describes the federation.
DESCRIPTION = "federation.json"
#: The largest sizes in bytes of a description, and of a file of weights beside that of the model.
LARGEST_TEXT, BESIDES = 2**20, 64 * 2**20
#: The kinds of answers and their folders.
ANSWERS: tuple[Literal["returned", "gradient"], ...] = ("returned", "gradient")
_ROUND = re.compile(r"(?:round[-_]?)?0*([0-9]{1,9})\Z")


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Args:
        files: The captures that were written.
        refused: Sentences about the files that could not be imported.
    """

    files: tuple[Path, ...]
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Answer:
    """The file of a client's answer in one round."""

    file: Path
    kind: Literal["returned", "gradient"]
    round: int
    folder: str
    client: str


def import_exchange(
    place: Location,
    captures: Location = "captures",
    *,
    model: nn.Module | str,
    model_options: Mapping[str, Any] | None = None,
    run: str | None = None,
) -> Imported:
    """Turn a folder of exchanged weights into captures.

    Args:
        place: The folder, whose layout is that of :mod:`leakgauge.workflows.import_exchange`.
        captures: The folder for the captures. Those of this import are in a folder ``run-NUMBER`` of their own.
        model: The architecture of the exchanged weights, or ``module:factory``.
        model_options: The options of the factory.
        run: The name of the run. By default, the first number without a folder.
    """
    source = Path(place)
    if not source.is_dir():
        raise FileError(f"{source}: there is no such folder")
    built = models.build(model, **(model_options or {})) if isinstance(model, str) else model
    recorder = _recorder(source, Path(captures), built)
    answers = list(_answers(source))
    if not answers:
        raise FileError(f"{source}: there are no files such as returned/1/CLIENT{SUFFIX} or gradient/1/CLIENT.npz")
    name = run if run is not None else new_folder(Path(captures), "run").name.removeprefix("run-")
    limit = 16 * sum(value.numel() for value in built.state_dict().values()) + BESIDES
    files: list[Path] = []
    refused: list[str] = []
    for answer in answers:
        try:
            files.append(recorder.save(_exchange(source, answer, recorder, name, limit)))
        except LeakgaugeError as problem:
            text = str(problem)
            refused.append(printable(text if str(source) in text else f"{answer.file}: {text}", longest=1000))
    if not files:
        raise InvalidInput(f"nothing could be imported. {refused[0]}")
    return Imported(tuple(files), tuple(refused))


def _recorder(source: Path, captures: Path, model: nn.Module) -> Captures:
    description = _read_json(source / DESCRIPTION)
    for key in description:
        if key not in ("data", "training"):
            raise UnknownName(f"part of {source / DESCRIPTION} called", key, ("data", "training"))
    data = _dataclass(DataSpec, description.get("data"), source / DESCRIPTION)
    return Captures(captures, model, data, _training(UNKNOWN, description.get("training", {}), source / DESCRIPTION))


def _answers(source: Path) -> Iterator[_Answer]:
    """Yield the files of the clients' answers, round by round."""
    found = []
    for kind in ANSWERS:
        for folder in sorted((source / kind).glob("*/")):
            number = _ROUND.match(folder.name)
            if number is None:
                raise InvalidInput(f"{folder}: the folder of a round is called by its number, such as {kind}/4")
            files = [file for file in sorted(folder.iterdir()) if file.suffix in (SUFFIX, ".npz")]
            found += [_Answer(file, kind, int(number[1]), folder.name, file.stem) for file in files]
    return iter(sorted(found, key=lambda answer: (answer.round, answer.client)))


def _exchange(source: Path, answer: _Answer, recorder: Captures, run: str, limit: int) -> Exchange:
    own, common = (_weights_of(source / "sent" / name) for name in (f"{answer.folder}/{answer.client}", answer.folder))
    sent = own or common
    if sent is None:
        raise FileError(f"{answer.file}: the weights that the client got are missing. Add sent/{answer.folder}{SUFFIX}")
    extra = source / "training" / answer.folder / f"{answer.client}.json"
    training = _training(recorder.training, _read_json(extra), extra) if extra.exists() else recorder.training
    sends: Literal["weights", "gradient"] = "weights" if answer.kind == "returned" else "gradient"
    arrays = (_read_weights(sent, limit), _read_weights(answer.file, limit))
    return Exchange(run, answer.round, answer.client, *arrays, sends=sends, training=training)


def _weights_of(stem: Path) -> Path | None:
    """Return the file of weights with this name, or ``None`` if there is none."""
    paths = [stem.parent / f"{stem.name}{suffix}" for suffix in (SUFFIX, ".npz")]
    return next((path for path in paths if path.is_file()), None)


def _read_weights(path: Path, limit: int) -> Arrays:
    """Return the arrays in a file of weights. Nothing in it is unpickled."""
    _check_size(path, limit)
    try:
        if path.suffix == SUFFIX:
            return arrays_in(safetensors.torch.load(path.read_bytes()))
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise FileError(f"{path}: holds more than {limit} bytes, which is too much for this model")
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.array(archive[name]) for name in archive.files}
    except LeakgaugeError:
        raise
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
        NotImplementedError,
    ) as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise FileError(f"{path}: the weights cannot be read ({shown(reason)})") from problem


def _check_size(path: Path, limit: int) -> None:
    """Raise an error if a file is not a regular one, or is too large."""
    if not path.is_file():
        raise FileError(f"{path}: there is no such file")
    if path.stat().st_size > limit:
        raise FileError(f"{path}: has {path.stat().st_size} bytes, more than the limit of {limit}")


def _read_json(path: Path) -> dict[str, Any]:
    _check_size(path, LARGEST_TEXT)
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise FileError(f"{path}: is not JSON ({shown(problem)})") from problem
    if not isinstance(found, dict):
        raise InvalidInput(f"{path}: is not a JSON object")
    return found


def _training(known: LocalTraining, settings: object, path: Path) -> LocalTraining:
    """Return what is known of a training, with further settings."""
    values = _values(LocalTraining, settings, path)
    try:
        return replace(known, **values)
    except LeakgaugeError as problem:
        raise InvalidInput(f"{path}: {problem}") from problem


def _dataclass(kind: type[DataSpec], values: object, path: Path) -> DataSpec:
    known = _values(kind, values, path)
    try:
        return kind(**known)
    except (LeakgaugeError, TypeError) as problem:
        raise InvalidInput(f"{path}: {problem}") from problem


def _values(kind: type, values: object, path: Path) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        words = '"data": {"shape": [1, 28, 28], "classes": 10, "mean": [0], "std": [1]}'
        raise InvalidInput(f"{path}: lacks a part, such as {words}")
    known = {item.name for item in fields(kind)}
    for name in values:
        if name not in known:
            raise UnknownName(f"part of {kind.__name__} in {path} called", str(name), known)
    return {name: _tuples(value) for name, value in values.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
