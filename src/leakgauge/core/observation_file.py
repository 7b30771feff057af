"""Functions that save observations to files and load them again.

An observation is what a server sees of one client in one round. A file also holds the name and the options of the
client's model, and :func:`load` builds the model from them. For safety, this works only for the models of Leakgauge, so
that a file cannot make Python import other code. Any other model must be passed to :func:`load`.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import sent_files
from leakgauge.core.container import SUFFIX, Location, kind_of, read_container, write_container
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import CorruptFile, FileError, InvalidInput, LeakgaugeError, UnknownName, printable, shown
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import LABEL_FIELDS, TENSOR_TREES, Observation
from leakgauge.core.seeding import seeded
from leakgauge.models import MODELS, build, recipe_of

KIND = "observation"
#: Version 1 had no label batches and no defences, version 2 no optimiser but SGD, version 3 no malicious
#: server, version 4 no targets of several entries, version 5 no series, and version 6 no shared weights.
VERSION = 7
#: The largest number of characters in the name and options of a model. No network of Leakgauge has thousands of layers.
#: To build so many layers takes time, even if no memory is allocated.
_LONGEST_RECIPE = 10_000
#: The largest number of copies of a model's weights and statistics in a file: sent, returned, and one more.
_COPIES = 3
#: The largest size in bytes of everything else, which is the header and the labels of millions of samples.
_BESIDES = 64 * 2**20
#: The largest size in bytes of a model that is built from the name in a file. Larger models must be passed to ``load``.
_LARGEST_NAMED_MODEL = 512 * 2**20
#: The largest depth of a subfolder in which captures are looked for.
_DEEPEST = 5
#: The keys of the document.
_DOCUMENT = {"model", "frozen", "data", "training", "client", "round", "kind", "defences", "steered", "shared"}


def save(observation: Observation, path: Location, *, replace: bool = True, shared: bool = False) -> Path:
    """Save one observation to a file, and return the path of the file.

    Args:
        observation: The observation to save.
        path: The path of the file. The name must end in ``.safetensors``.
        replace: Whether an existing file is replaced. Otherwise, it is an error.
        shared: Whether the sent weights are stored in a file of the folder ``sent`` beside the observation, which all
            observations of the folder with the same sent weights share (:mod:`leakgauge.core.sent_files`).
    """
    recipe = recipe_of(observation.model)
    document = {
        "model": None if recipe is None else asdict(recipe),
        "frozen": [name for name, value in observation.model.named_parameters() if not value.requires_grad],
        "data": asdict(observation.data),
        "training": asdict(observation.training),
        "client": observation.client,
        "round": observation.round,
        "kind": observation.kind,
        "defences": observation.defences,
        "steered": observation.steered,
        "shared": "",
    }
    tensors: dict[str, Tensor] = {}
    for tree in TENSOR_TREES:
        for name, value in (getattr(observation, tree) or {}).items():
            tensors[f"{tree}/{name}"] = value
    tensors |= {name: getattr(observation, name) for name in LABEL_FIELDS if getattr(observation, name) is not None}
    if shared:
        common = {name: value for name, value in tensors.items() if name.partition("/")[0] in sent_files.TREES}
        document["shared"] = sent_files.store(Path(path), common)
        tensors = {name: value for name, value in tensors.items() if name not in common}
    return write_container(path, KIND, VERSION, document, tensors, replace=replace)


def load(path: Location, model: nn.Module | None = None) -> Observation:
    """Load one observation from a file.

    An error is raised if the file is truncated, was altered, holds no observation, or was written by a newer version of
    Leakgauge. An error is also raised if the tensors hold NaN or do not fit the model. The error message names the file
    and explains what is wrong.

    Args:
        path: The path of the file.
        model: The client's model. It is needed only if it is not one of Leakgauge's models.
    """
    document, tensors = read_container(path, KIND, VERSION, max_bytes=partial(_max_bytes, Path(path), model))
    try:
        return _assemble(Path(path), document, tensors | _shared(Path(path), document, tensors, model), model)
    except FileError:
        raise
    except InvalidInput as problem:
        raise CorruptFile(f"{path}: {problem}") from problem
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as problem:
        reason = shown(problem)
        raise CorruptFile(f"{path}: its description does not describe an observation ({reason})") from problem


def _shared(
    path: Path, document: Mapping[str, Any], tensors: Mapping[str, Tensor], model: nn.Module | None
) -> dict[str, Tensor]:
    """Return the tensors of a capture that are in a file which several captures share."""
    checksum = document.get("shared", "")  # earlier versions have none
    if checksum == "":
        return {}
    # The size is bounded by the model, as that of the capture.
    common = sent_files.fetch(path, checksum, lambda _: _max_bytes(path, model, document))
    twice = sorted(common.keys() & tensors.keys())
    if twice:
        raise CorruptFile(f"{path}: {shown(twice[0])} is both in this file and in the file that it shares with others")
    return common


def save_all(observations: Iterable[Observation], folder: Location) -> list[Path]:
    """Save observations into a folder, and return the paths of the files.

    Args:
        observations: The observations to save.
        folder: The folder. Each observation gets one file, whose name consists of the client and the round.
    """
    paths: list[Path] = []
    for observation in observations:
        path = Path(folder) / f"{stem(observation)}{SUFFIX}"
        number = 1
        while path in paths:
            number += 1
            path = Path(folder) / f"{stem(observation)}_{number}{SUFFIX}"
        paths.append(save(observation, path))
    return paths


def stem(observation: Observation) -> str:
    """Return the file name of an observation without its suffix. The name consists of the client and the round."""
    return f"{plain(observation.client)}_round-{observation.round:06d}"


def load_all(folder: Location, model: nn.Module | None = None) -> list[Observation]:
    """Load every observation of a folder, in the order of the file names.

    Args:
        folder: The folder, or the path of a single file.
        model: The client's model. It is needed only if it is not one of Leakgauge's models.
    """
    return [load(path, model) for path in observation_files(folder)]


def load_rounds(folder: Location, client: str, model: nn.Module | None = None) -> list[Observation]:
    """Load all observations of one client, sorted by round. Attacks on many rounds need them in this order.

    Args:
        folder: The folder with the observations.
        client: The name of the client.
        model: The client's model. It is needed only if it is not one of Leakgauge's models.
    """
    files = observation_files(folder)
    candidates = [path for path in files if path.name.startswith(f"{plain(client)}_round-")]
    rounds = [observation for observation in (load(path, model) for path in candidates) if observation.client == client]
    if not rounds:
        known = sorted({path.name.rpartition("_round-")[0] or path.stem for path in files})
        raise UnknownName(f"client in {folder} called", client, known[:20])
    return sorted(rounds, key=lambda observation: observation.round)


def observation_files(location: Location) -> list[Path]:
    """Return the paths of the observation files in a folder.

    Args:
        location: The folder, or the path of a single file. If the folder itself has no observation files, those in its
            subfolders are returned. If several subfolders have some, it is an error, because runs are never mixed.
    """
    place = Path(location)
    if not place.exists():
        raise FileError(f"{place}: there is no such file or folder")
    if not place.is_dir():
        return [place]
    files = _files_in(place)
    if files:
        return files
    runs = _runs_in(place)
    if not runs:
        raise FileError(f"{place}: there are no {SUFFIX} files in this folder or its subfolders")
    if len(runs) > 1:
        names = ", ".join(printable(path.relative_to(place).as_posix()) for path in runs[:5])
        more = ", ..." if len(runs) > 5 else ""
        raise FileError(f"{place}: holds {len(runs)} runs ({names}{more}). Give the folder of one run.")
    return _files_in(runs[0])


def _runs_in(place: Path) -> list[Path]:
    """Return the subfolders that hold observation files, without the weights that captures share.

    Files of Leakgauge with other contents, such as reconstructions, do not count. Damaged files do, so that they are
    reported.
    """
    found = []
    for name, folders, _ in os.walk(place):
        folder = Path(name)
        deep = len(folder.relative_to(place).parts) >= _DEEPEST
        folders[:] = [] if deep else [one for one in folders if one != sent_files.FOLDER and not one.startswith(".")]
        if folder != place and any(kind_of(file) in (KIND, None) for file in _files_in(folder)):
            found.append(folder)
    return sorted(found)


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))


def _assemble(
    path: Path, document: Mapping[str, Any], tensors: Mapping[str, Tensor], model: nn.Module | None
) -> Observation:
    """Build the observation from the JSON object and the tensors of its file."""
    trees = _trees(path, tensors)
    document = {"defences": None, "steered": "", "shared": "", **document}  # earlier versions have none
    wrong = sorted(document.keys() ^ _DOCUMENT)
    if wrong:
        problem = "has an unknown" if wrong[0] in document else "lacks the"
        raise CorruptFile(f"{path}: its description {problem} {shown(wrong[0])}")
    round_number, client, frozen = document["round"], document["client"], document["frozen"]
    if type(round_number) is not int or not isinstance(client, str) or not isinstance(frozen, list):
        raise CorruptFile(f"{path}: client, round and frozen must be a text, a number and a list")
    observation = Observation(
        model=_frozen_as_recorded(model, frozen, trees)
        if model is not None
        else _rebuild(path, document["model"], frozen, trees["sent"]),
        data=_from_json(DataSpec, document["data"]),
        training=_from_json(LocalTraining, document["training"]),
        client=client,
        round=round_number,
        defences=document["defences"],
        steered=document["steered"],
        labels=tensors.get("labels"),
        label_counts=tensors.get("label_counts"),
        label_batches=tensors.get("label_batches"),
        **{"gradient": None, "returned": None, **trees},  # type: ignore[arg-type]
    )
    if observation.kind != document["kind"]:
        raise CorruptFile(f"{path}: it is described as {shown(document['kind'])}, but holds {observation.kind}")
    return observation


def _trees(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Split the tensors of a file into one dictionary for each prefix of their keys. Labels are left out.

    For example, the key ``sent/conv.weight`` becomes the entry ``conv.weight`` in the dictionary ``sent``.
    """
    trees: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key not in LABEL_FIELDS:
            tree, _, name = key.partition("/")
            if tree not in TENSOR_TREES or not name:
                raise CorruptFile(f"{path}: unexpected tensor {shown(key)}")
            trees.setdefault(tree, {})[name] = value
    if "sent" not in trees:
        raise CorruptFile(f"{path}: the weights that were sent to the client are missing")
    return trees


def _from_json(kind: type, values: Mapping[str, Any]) -> Any:
    known = {item.name for item in fields(kind)}
    if set(values) - known:
        raise InvalidInput(f"{kind.__name__} has no {shown(sorted(set(values) - known)[0])}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _max_bytes(path: Path, model: nn.Module | None, document: Mapping[str, Any]) -> int:
    """Return the largest allowed size in bytes of an observation file. It depends on the size of the model.

    ``model`` is the model that the user passed. If it is ``None``, the model that the file names is used, and the limit
    has a fixed maximum.
    """
    if model is not None:
        return _COPIES * 8 * _size(model) + _BESIDES
    try:
        return min(_COPIES * 8 * _size(_outline(path, document["model"])), _LARGEST_NAMED_MODEL) + _BESIDES
    except (LeakgaugeError, LookupError, TypeError, ValueError, AttributeError, RuntimeError):
        return _BESIDES  # the problem is reported after the checksum is checked


def _size(model: nn.Module) -> int:
    """Return the number of values in the parameters and buffers of a model."""
    return sum(value.numel() for value in (*model.parameters(), *model.buffers()))


def _outline(path: Path, recipe: Mapping[str, Any] | None) -> nn.Module:
    """Build the model that a file names on the meta device, where tensors have shapes but no memory.

    Raise an error if the file does not name one of Leakgauge's models.
    """
    if recipe is None or recipe["name"] not in MODELS:
        maker = "" if recipe is None else f" (it was made by {shown(recipe['name'])})"
        raise FileError(
            f"{path}: the model is not one of Leakgauge's{maker}, and a file must not decide which code is run. "
            "Pass the model with load(path, model=...), or with --model module:factory on the command line."
        )
    if len(json.dumps(recipe)) > _LONGEST_RECIPE:
        raise CorruptFile(f"{path}: the model {recipe['name']!r} has too many options to be one of Leakgauge's")
    try:
        with torch.device("meta"):
            return build(recipe["name"], **recipe["options"])
    except (LeakgaugeError, RuntimeError, ArithmeticError, MemoryError) as problem:
        raise CorruptFile(f"{path}: the model {recipe['name']!r} cannot be built: {problem}") from problem


def _rebuild(
    path: Path, recipe: Mapping[str, Any] | None, frozen: Sequence[str], sent: Mapping[str, Tensor]
) -> nn.Module:
    """Build the model that a file names, and freeze the parameters in ``frozen``.

    Raise an error if the weights in the file do not have the shapes of the model.
    """
    outline = _outline(path, recipe)
    assert recipe is not None
    expected = {name: tuple(value.shape) for name, value in outline.named_parameters()}
    if expected != {name: tuple(value.shape) for name, value in sent.items()}:
        raise CorruptFile(f"{path}: the weights do not have the shapes of the model {recipe['name']!r}")
    with seeded(0):  # the first weights are not used, and must not change the caller's random state
        model = build(recipe["name"], **recipe["options"])
        types = {value.dtype for value in sent.values()}
        if len(types) == 1 and (only := types.pop()).is_floating_point:  # Observation refuses other types by name
            model = model.to(only)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model


def _frozen_as_recorded(
    model: nn.Module, frozen: Sequence[object], trees: Mapping[str, Mapping[str, Tensor]]
) -> nn.Module:
    """Return the user's model, in which weights that the client did not train are frozen.

    Such weights have the name of a frozen one in the file, and did not change.

    Args:
        model: The user's model, which is not changed.
        frozen: The names of the weights that were frozen in the recorder's model.
        trees: The tensors of the file.
    """
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    names = [name for name in frozen if isinstance(name, str) and name in trained and _is_unchanged(name, trees)]
    if not names:
        return model
    model = copy.deepcopy(model)
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def _is_unchanged(name: str, trees: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Return whether a weight came back as it was sent, or with a gradient of zero."""
    sent, returned, gradient = (trees.get(tree, {}).get(name) for tree in ("sent", "returned", "gradient"))
    if gradient is not None:
        return not bool(gradient.any())
    return sent is not None and returned is not None and torch.equal(sent, returned)


def plain(text: str) -> str:
    """Replace all characters of a text, such as a client's name, that are not safe inside a file name."""
    safe = "".join(character if character.isalnum() or character in "-_" else "-" for character in text)
    return safe[:40] or "client"  # a character may take four bytes, and a file name may have 255
